// The C++ of docs/gpu.md, compiled and run on the CPU device: each example stands here between two
// marks, and the page must have the same, spaces and comments apart.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "gpu/agent/kv_agent.h"
#include "gpu/attention/attend.h"
#include "gpu/attention/attention.h"
#include "gpu/device/cpu_device.h"
#include "gpu/device/open_device.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

constexpr BlockLayout kLayout = {2, 1, 16, 8, 8, 2};
constexpr int64_t kPages = 4, kPageTokens = 8, kRow = 16;
constexpr int64_t kTensor = kPages * kPageTokens * kRow;

// Gathers a block, and scatters it to the same pages again.
absl::Status SaveAndLoad(const KvView& view, std::span<std::byte> memory,
                         const std::vector<int64_t>& page_ids) {
  const BlockLayout& layout = kLayout;
  constexpr EngineStream stream = 0;
  // docs/gpu.md >>>
  KV_ASSIGN_OR_RETURN(const std::shared_ptr<ComputeDevice> device, OpenDevice("cpu"));
  const auto registry = std::make_shared<HostRegistry>(device);
  registry->Add(memory, HostRegistry::Use::kReadWrite);
  registry->WaitIdle(30'000'000'000);
  KvAgent agent(device, registry);
  KV_ASSIGN_OR_RETURN(const uint64_t generation, agent.Attach(view, layout, {}, {}));

  const BlockMove block{memory.first(layout.BlockBytes()), page_ids};
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<AgentMove> save,
                      agent.Start(generation, MoveDirection::kGather, {&block, 1}, {stream}));
  KV_RETURN_IF_ERROR(save->Wait());
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<AgentMove> load,
                      agent.Start(generation, MoveDirection::kScatter, {&block, 1}, {stream}));
  KV_RETURN_IF_ERROR(load->EngineAfterLayer(stream, 0));

  KV_RETURN_IF_ERROR(load->Wait());
  KV_RETURN_IF_ERROR(agent.Detach(generation));
  // <<<
  return absl::OkStatus();
}

TEST(DocsExamplesTest, AnAgentInTheEngine) {
  std::vector<std::byte> pages(4 * kTensor), memory(kLayout.BlockBytes());
  std::mt19937_64 random(1);
  for (std::byte& byte : pages) byte = static_cast<std::byte>(random());
  KvView view;
  view.pages = kPages, view.page_tokens = kPageTokens, view.kv_heads = 1;
  view.k_dim = view.v_dim = 8, view.element_bytes = 2;
  for (int64_t layer = 0; layer < 2; ++layer) {
    PagedTensor k{pages.data() + 2 * layer * kTensor, kTensor, kPageTokens * kRow, kRow, kRow};
    PagedTensor v = k;
    v.base += kTensor;
    view.layers.push_back({k, v});
  }
  const std::vector<std::byte> before = pages;
  const absl::Status status = SaveAndLoad(view, memory, {3, 1});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(pages, before);
  for (uint32_t token = 0; token < kLayout.tokens; ++token) {
    const std::byte* const row = view.layers[1].v.Row(token < 8 ? 3 : 1, 0, token % 8);
    EXPECT_EQ(std::memcmp(&memory[kLayout.VOffset(1, 0, token)], row, kRow), 0) << token;
  }
}

// A context whose old part lies in blocks of the host tier, and whose recent part a GPU attended.
absl::Status AttendBlocks(const BlockLayout& layout, const std::vector<const std::byte*>& blocks,
                          std::span<const float> q, std::span<const float> sinks,
                          const float* gpu_out, const float* gpu_lse, std::span<float> out,
                          std::span<float> lse) {
  // docs/gpu.md >>>
  AttendRequest request{.pages = BlockPages(layout, /*layer=*/3, ElementType::kBf16),
                        .options = {.q_heads = 32, .scale = 0.088f}};
  const AttentionSequence sequence{.blocks = blocks, .kv_tokens = 8192, .q_position = 9000};
  request.sequences = {&sequence, 1};
  request.q = q, request.out = out, request.lse = lse, request.threads = 2;
  KV_ASSIGN_OR_RETURN(const auto attender, Attender::Create(NewCpuDevice(), 0));
  KV_RETURN_IF_ERROR(attender->Run(request));
  const AttentionState parts[] = {{out.data(), lse.data()}, {gpu_out, gpu_lse}};
  MergeStates(parts, /*rows=*/32, /*dim=*/128, sinks, out.data(), lse.data());
  // <<<
  return absl::OkStatus();
}

// All keys are 0: the answer is the mean of all V, 1 in the blocks and 3 where the GPU was, as
// often as there are tokens.
TEST(DocsExamplesTest, AttentionOverBlocksMergedWithAGpus) {
  const BlockLayout layout = {4, 8, 128, 128, 128, 2};
  std::vector<std::byte> block(layout.BlockBytes());
  const uint16_t one = 0x3f80;
  for (uint32_t head = 0; head < 8; ++head) {
    for (uint32_t token = 0; token < 128; ++token) {
      for (size_t d = 0; d < 128; ++d)
        std::memcpy(&block[layout.VOffset(3, head, token) + 2 * d], &one, 2);
    }
  }
  const std::vector<const std::byte*> blocks(64, block.data());
  const std::vector<float> q(32 * 128, 0.5f), gpu_out(32 * 128, 3.0f);
  const std::vector<float> gpu_lse(32, std::log(2048.0f)), sinks(32, std::log(10240.0f));
  std::vector<float> out(32 * 128), lse(32);
  const absl::Status status =
      AttendBlocks(layout, blocks, q, sinks, gpu_out.data(), gpu_lse.data(), out, lse);
  ASSERT_TRUE(status.ok()) << status;
  for (const float value : out) ASSERT_NEAR(value, (8192 * 1.0 + 2048 * 3.0) / 20480, 1e-5);
  for (const float sum : lse) ASSERT_NEAR(sum, std::log(20480.0), 1e-5);
}

// Without comments, "cuda" for "cpu", and all in one line.
std::string Plain(const std::string& code) {
  std::istringstream lines(code);
  std::string plain;
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.find("//"), line.size()));
    for (const char c : line) {
      if (std::isspace(static_cast<unsigned char>(c)) == 0) plain += c;
    }
  }
  const size_t device = plain.find("OpenDevice(\"cuda\")");
  if (device != std::string::npos) plain.replace(device, 18, "OpenDevice(\"cpu\")");
  return plain;
}

std::vector<std::string> Between(const std::string& path, const std::string& begin,
                                 const std::string& end) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::string> found;
  const std::string all = text.str();
  for (size_t at = all.find(begin); at != std::string::npos; at = all.find(begin, at)) {
    at += begin.size();
    found.push_back(Plain(all.substr(at, all.find(end, at) - at)));
  }
  return found;
}

TEST(DocsExamplesTest, ThePageHasThem) {
  const auto page = Between("docs/gpu.md", "```cpp", "```");
  const auto here =
      Between("gpu/agent/docs_examples_test.cc", "  // docs/gpu.md >>>\n", "  // <<<");
  ASSERT_EQ(here.size(), 2u);
  EXPECT_EQ(page, (std::vector<std::string>{here[1], here[0]})) << "in the page's order";
}

}  // namespace
}  // namespace kvarve

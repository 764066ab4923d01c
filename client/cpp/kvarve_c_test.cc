// Goal: the C ABI is C, and does what client.h does. Method: a program compiled as C against the
// small daemon.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/fake_daemon_testing.h"
#include "client/cpp/kvarve.h"
#include "storage/base/status_macros.h"

extern "C" {
int RunCProgram(const char* endpoint, const void* descriptor, size_t descriptor_bytes,
                const unsigned char* keys);
int RunWithNulls(const char* endpoint, const void* descriptor, size_t descriptor_bytes,
                 const unsigned char* keys);
}

namespace kvarve {
namespace {

TEST(KvarveC, AProgramInC) {
  char folder[] = "/tmp/kvarve-c-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s";
  {
    FakeDaemon daemon(path, {});
    const std::string descriptor = EncodeDescriptor(TestDescriptor("c"));
    const std::vector<BlockKey> keys = TestKeys(0, 3);
    EXPECT_EQ(RunCProgram(("unix://" + path).c_str(), descriptor.data(), descriptor.size(),
                          keys[0].bytes.data()),
              0)
        << "the line of kvarve_c_test_program.c that failed";
    EXPECT_EQ(daemon.seen().engine_id, "c-program");
    EXPECT_TRUE(daemon.WaitFor([](const auto& seen) { return seen.released.size() >= 3; }));
    EXPECT_EQ(RunWithNulls(("unix://" + path).c_str(), descriptor.data(), descriptor.size(),
                           keys[0].bytes.data()),
              0);
  }
  ::rmdir(folder);
}

// What a C program writes is what the library's own encoder writes.
TEST(KvarveC, ADescriptorInC) {
  NamespaceDescriptor d;
  d.model = "m";
  d.model_digest = "w";
  d.tokenizer_digest = "t";
  d.element_type = ElementType::kFp16;
  d.layer_begin = 2, d.layer_count = 4, d.layer_total = 8;
  d.kv_head_begin = 1, d.kv_head_count = 2, d.kv_head_total = 4;
  d.k_dim = 64, d.v_dim = 32;
  d.block_tokens = 16;
  d.block_bytes = 4ull * 2 * 16 * (64 + 32) * 2;
  d.key_bytes = 16;
  d.hash_version = "h";
  d.adapter_digest = "a", d.attention_backend = "b", d.kv_scales = "s", d.client_salt = "c";
  d.generation = 7;
  d.extra = {{"x", "1"}, {"y", "2"}};
  ASSERT_EQ(ValidateDescriptor(d), absl::OkStatus());
  const char* const extra[] = {"y", "2", "x", "1"};
  const kvarve_descriptor given = {
      sizeof(given), "m", "w", "t", KVARVE_FP16, 2,   4, 8,   1,     2, 4, 64, 32, 16,
      d.block_bytes, 16,  "h", "a", "b",         "s", 7, "c", extra, 2};
  std::string bytes(KVARVE_DESCRIPTOR_BYTES_MAX, '\0');
  static_assert(KVARVE_DESCRIPTOR_BYTES_MAX == kMaxDescriptorBytes);
  size_t size = 0;
  ASSERT_EQ(kvarve_describe(&given, bytes.data(), bytes.size(), &size, nullptr), KVARVE_OK);
  EXPECT_EQ(bytes.substr(0, size), EncodeDescriptor(d));
}

// A program of an earlier or a later kvarve.h: shorter structures, and longer ones.
TEST(KvarveC, StructuresMayGrow) {
  kvarve_error error;
  kvarve_client* client = nullptr;
  struct Later {
    kvarve_options known;
    uint64_t added;
  } later = {{.size = sizeof(Later)}, 0};
  EXPECT_EQ(kvarve_open(&later.known, &client, &error), KVARVE_OK) << error.text;
  kvarve_close(client);
  later.added = 1;
  EXPECT_EQ(kvarve_open(&later.known, &client, &error), KVARVE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("older"), std::string::npos) << error.text;

  // All of an earlier one's: the endpoint. What lies behind is not the library's.
  kvarve_options earlier = {.size = offsetof(kvarve_options, engine_id), .endpoint = "tcp://x"};
  earlier.role = 9;
  EXPECT_EQ(kvarve_open(&earlier, &client, &error), KVARVE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("tcp://x"), std::string::npos) << error.text;
  earlier.endpoint = nullptr;
  ASSERT_EQ(kvarve_open(&earlier, &client, &error), KVARVE_OK) << error.text;
  kvarve_state state;
  std::memset(&state, 0x55, sizeof(state));
  state.size = offsetof(kvarve_state, incarnation);
  EXPECT_EQ(kvarve_get_state(client, &state), KVARVE_OK);
  EXPECT_EQ(state.connected, 0);
  EXPECT_EQ(state.incarnation, 0x5555555555555555u);
  state.size = 0;
  EXPECT_EQ(kvarve_get_state(client, &state), KVARVE_INVALID_ARGUMENT);
  kvarve_close(client);

  kvarve_options unsized = {};
  EXPECT_EQ(kvarve_open(&unsized, &client, &error), KVARVE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("sizeof(kvarve_options)"), std::string::npos);
}

TEST(KvarveC, CodesAndOutcomesAreTheLibrarys) {
  EXPECT_EQ(static_cast<int>(KVARVE_UNAUTHENTICATED),
            static_cast<int>(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(static_cast<int>(KVARVE_UNAVAILABLE), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(static_cast<int>(KVARVE_NOT_FOUND), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(static_cast<int>(KVARVE_REJECTED_INVALIDATED),
            static_cast<int>(PutOutcome::kRejectedInvalidated));
  EXPECT_EQ(static_cast<int>(KVARVE_REJECTED_QUOTA), static_cast<int>(PutOutcome::kRejectedQuota));
  EXPECT_EQ(static_cast<int>(KVARVE_REJECTED_PARENT),
            static_cast<int>(PutOutcome::kRejectedParent));
}

}  // namespace
}  // namespace kvarve

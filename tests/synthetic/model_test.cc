// The synthetic model behaves like one: the same bytes from everywhere, and every token before
// matters.
#include "tests/synthetic/model.h"

#include "gtest/gtest.h"
#include "storage/block/namespace.h"

namespace kvarve::synthetic {
namespace {

constexpr size_t kPageBytes = 4096;

std::vector<std::vector<std::byte>> Pages(std::span<const uint32_t> tokens) {
  State state;
  std::vector<std::vector<std::byte>> pages;
  for (size_t at = 0; at + kBlockTokens <= tokens.size(); at += kBlockTokens) {
    pages.emplace_back(kPageBytes);
    state.Prefill(tokens.subspan(at, kBlockTokens), pages.back());
  }
  return pages;
}

TEST(SyntheticModel, DescriptorIsValid) {
  EXPECT_TRUE(ValidateDescriptor(Descriptor()).ok());
  EXPECT_EQ(Descriptor().block_bytes, 23040u * kBlockTokens);
}

TEST(SyntheticModel, ResumingFromAPageContinuesTheSame) {
  const std::vector<uint32_t> tokens = PromptTokens(7, 4 * kBlockTokens);
  const auto pages = Pages(tokens);
  State state;
  state.Resume(pages[1]);
  std::vector<std::byte> page(kPageBytes);
  state.Prefill(std::span(tokens).subspan(2 * kBlockTokens, kBlockTokens), page);
  EXPECT_EQ(page, pages[2]);
}

TEST(SyntheticModel, AnEarlyTokenChangesEveryLaterPage) {
  std::vector<uint32_t> tokens = PromptTokens(7, 4 * kBlockTokens);
  const auto before = Pages(tokens);
  tokens[kBlockTokens] ^= 1;
  const auto after = Pages(tokens);
  EXPECT_EQ(before[0], after[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_NE(before[i], after[i]) << i;
}

TEST(SyntheticModel, PromptsDifferFromTheFirstToken) {
  EXPECT_NE(PromptTokens(1, 8)[0], PromptTokens(2, 8)[0]);
  EXPECT_EQ(PromptTokens(1, 8), PromptTokens(1, 8));
}

}  // namespace
}  // namespace kvarve::synthetic

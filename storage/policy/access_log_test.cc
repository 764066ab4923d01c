// An access log becomes the trace that a person would write down for it, and what is no such log,
// or a damaged one, is refused or ends at its last whole record.
#include "storage/policy/access_log.h"

#include <gtest/gtest.h>

#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

std::string LogOf(const std::vector<Access>& accesses) {
  std::string log = AccessLogHeader();
  for (const Access& access : accesses) AppendAccess(access, &log);
  return log;
}

std::vector<uint64_t> IdsOf(const Trace& trace, size_t request) {
  std::vector<uint64_t> ids;
  for (const uint32_t block : trace.requests[request].blocks) ids.push_back(trace.ids[block]);
  return ids;
}

TEST(AccessLog, BytesAsDescribed) {
  EXPECT_EQ(LogOf({{.micros = 1, .request = 2, .parent = 3, .first_depth = 4, .ids = {5}}}),
            std::string("kvaccess"
                        "\1\0\0\0\0\0\0\0"
                        "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
                        "\4\0\0\0\1\0\0\0\5\0\0\0\0\0\0\0",
                        16 + 32 + 8));
}

// Two requests in turns: one reads what is there and puts the rest in two steps, one is told of
// from its middle on, as engines do that have the begin of a prompt themselves.
TEST(AccessLog, ARequestIsItsChainFromTheRoot) {
  const auto converted = TraceOfAccessLog(LogOf({
      {.micros = 1'000'000, .request = 7, .ids = {11, 12}},
      {.micros = 1'500'000, .request = 8, .first_depth = 1, .ids = {12, 23}},
      {.micros = 2'000'000, .request = 7, .parent = 12, .first_depth = 2, .ids = {13}},
      {.micros = 2'100'000, .request = 7, .parent = 13, .first_depth = 3, .ids = {14}},
      {.micros = 3'000'000, .request = 0, .ids = {11}},
      {.micros = 4'000'000, .request = 9, .parent = 98, .first_depth = 5, .ids = {99}},
      {.micros = 5'500'000, .request = 10, .ids = {11}},
  }));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->accesses, 7u);
  EXPECT_EQ(converted->unnamed, 1u);
  EXPECT_EQ(converted->incomplete, 1u);
  const Trace& trace = converted->trace;
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(IdsOf(trace, 0), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(IdsOf(trace, 1), (std::vector<uint64_t>{0, 1, 4}));
  EXPECT_EQ(IdsOf(trace, 2), (std::vector<uint64_t>{0}));
  EXPECT_DOUBLE_EQ(trace.requests[1].seconds, 0.5);
  EXPECT_DOUBLE_EQ(trace.requests[2].seconds, 4.5);
  EXPECT_EQ(trace.requests[0].response_tokens, UINT32_MAX);
}

TEST(AccessLog, TheCsvIsTheSameTrace) {
  const auto converted = TraceOfAccessLog(LogOf({
      {.micros = 1'000'000, .request = 7, .ids = {11, 12}},
      {.micros = 1'250'000, .request = 8, .ids = {11, 13}},
  }));
  ASSERT_TRUE(converted.ok());
  const auto again = ParseTrace(TraceCsv(converted->trace));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->parents, converted->trace.parents);
  EXPECT_EQ(again->references, 4u);
  EXPECT_DOUBLE_EQ(again->requests[1].seconds, 0.25);
  EXPECT_EQ(again->requests[1].blocks, converted->trace.requests[1].blocks);
}

TEST(AccessLog, IsRefusedOrEndsAtTheLastWholeRecord) {
  const std::string log = LogOf({{.request = 1, .ids = {1, 2}}, {.request = 2, .ids = {1, 3}}});
  for (size_t size = 0; size <= log.size(); ++size) {
    const auto converted = TraceOfAccessLog(std::string_view(log).substr(0, size));
    ASSERT_EQ(converted.ok(), size >= 16) << size;
    if (!converted.ok()) continue;
    const size_t whole = size < 16 + 48 ? 0 : size < 16 + 96 ? 1 : 2;
    EXPECT_EQ(converted->trace.requests.size(), whole) << size;
  }
  EXPECT_FALSE(TraceOfAccessLog("timestamp,in,out,ids\n").ok());
  std::string later = log;
  later[8] = 2;
  EXPECT_FALSE(TraceOfAccessLog(later).ok());
  EXPECT_FALSE(TraceOfAccessLog(LogOf({{.request = 1, .ids = {}}})).ok());
  EXPECT_FALSE(TraceOfAccessLog(LogOf({{.request = 1, .first_depth = 1u << 30, .ids = {1}}})).ok());
}

// Ids that contradict each other (a chain that bites its tail, two depths of one block) end.
TEST(AccessLog, WhatContradictsItselfIsLeftOut) {
  testing::SeededRandom random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<Access> accesses;
    for (int i = 0; i < 50; ++i) {
      Access access;
      access.request = random.Below(20);
      access.parent = random.Below(10);
      access.first_depth = static_cast<uint32_t>(random.Below(6));
      for (uint64_t n = 1 + random.Below(5); n > 0; --n) access.ids.push_back(1 + random.Below(10));
      accesses.push_back(access);
    }
    const auto converted = TraceOfAccessLog(LogOf(accesses));
    ASSERT_TRUE(converted.ok());
    for (const TraceRequest& request : converted->trace.requests)
      ASSERT_LE(request.blocks.size(), 10u);
  }
}

}  // namespace
}  // namespace kvarve

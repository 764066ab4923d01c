// What refusals leave behind: counts, some lines, and who has to wait.
#include "services/auth/refusals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace kvarve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPeer[] = "ipv4:10.1.2.3:40000";

class RefusalsTest : public ::testing::Test {
 protected:
  template <typename Act>
  std::vector<std::string> LinesOf(Act act) {
    ::testing::internal::CaptureStderr();
    act();
    return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }

  ManualClock clock_;
  Refusals refusals_{&clock_};
};

TEST_F(RefusalsTest, EachReasonHasALineASecond) {
  const auto flood = [&] {
    for (int i = 0; i < 1000; ++i) {
      refusals_.Add(AuthFault::kVerb, kPeer, "router-3", "team-a");
      refusals_.Add(AuthFault::kSignature, kPeer);
    }
  };
  EXPECT_THAT(LinesOf(flood), ElementsAre(AllOf(HasSubstr("reason=verb"), HasSubstr("router-3"),
                                                HasSubstr("team-a"), HasSubstr("10.1.2.3")),
                                          HasSubstr("reason=signature")));
  clock_.Advance(999'999'999);
  EXPECT_THAT(LinesOf(flood), IsEmpty());
  clock_.Advance(1);
  EXPECT_EQ(LinesOf(flood).size(), 2u);
  EXPECT_EQ(refusals_.Counts()[static_cast<size_t>(AuthFault::kVerb)], 3000u);
  EXPECT_EQ(refusals_.Counts()[static_cast<size_t>(AuthFault::kSignature)], 3000u);
}

TEST_F(RefusalsTest, OnlyWhoProvesNothingWaits) {
  LinesOf([&] {
    for (const AuthFault proven : {AuthFault::kVerb, AuthFault::kRole, AuthFault::kExpired,
                                   AuthFault::kRevoked, AuthFault::kTenant}) {
      for (int i = 0; i < 100; ++i) refusals_.Add(proven, kPeer);
    }
    EXPECT_EQ(refusals_.Wait(kPeer), 0);
    for (int i = 0; i < 20; ++i) refusals_.Add(AuthFault::kWrongToken, kPeer);
    EXPECT_GT(refusals_.Wait(kPeer), 0);
    EXPECT_EQ(refusals_.Wait("ipv4:10.1.2.4:40000"), 0);
  });
}

TEST(AuthFaultTest, EachHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kAuthFaults; ++i) names.insert(AuthFaultName(static_cast<AuthFault>(i)));
  EXPECT_EQ(names.size(), kAuthFaults);
  EXPECT_FALSE(names.contains(""));
  EXPECT_EQ(AuthFaultName(AuthFault::kVerb), "verb");
  EXPECT_EQ(AuthFaultName(AuthFault::kThrottled), "throttled");
}

}  // namespace
}  // namespace kvarve

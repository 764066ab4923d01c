#include "client/trace/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace kvarve {
namespace {

constexpr char kGiven[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kInner[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

TEST(TraceOfTest, TakesWhatTheRecommendationAllows) {
  // The examples of W3C Trace Context, 3.2.3.
  EXPECT_EQ(TraceOf("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7");
  EXPECT_EQ(TraceOf("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
            "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7");
  // A later version, with more behind.
  EXPECT_EQ(TraceOf("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"),
            "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7");
  for (const char* wrong : {"", "00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
                            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736x00f067aa0ba902b7-01",
                            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902\n7-01"}) {
    EXPECT_EQ(TraceOf(wrong), "") << wrong;
  }
}

TEST(NewTraceparentTest, IsOneOfItsOwnAndNotSampled) {
  std::set<std::string> traces;
  for (int i = 0; i < 1000; ++i) {
    const std::string made = NewTraceparent();
    EXPECT_EQ(made.size(), 55u);
    EXPECT_TRUE(made.starts_with("00-") && made.ends_with("-00")) << made;
    EXPECT_FALSE(TraceOf(made).empty()) << made;
    traces.insert(made.substr(3, 32));
  }
  EXPECT_EQ(traces.size(), 1000u);
}

TEST(TraceScopeTest, TheInnermostOfTheThreadCounts) {
  EXPECT_EQ(TraceScope::Current(), "");
  {
    const TraceScope outer(kGiven);
    EXPECT_EQ(TraceScope::Current(), kGiven);
    {
      const TraceScope inner(kInner);
      EXPECT_EQ(TraceScope::Current(), kInner);
      const TraceScope none("no traceparent");
      EXPECT_EQ(TraceScope::Current(), kInner);
    }
    EXPECT_EQ(TraceScope::Current(), kGiven);
    std::thread([] { EXPECT_EQ(TraceScope::Current(), ""); }).join();
  }
  EXPECT_EQ(TraceScope::Current(), "");
}

}  // namespace
}  // namespace kvarve

// Goal: the C ABI is C, and does what client.h does. Method: a program compiled as C against the
// small daemon.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/fake_daemon_testing.h"
#include "client/cpp/kvarve.h"
#include "storage/base/status_macros.h"

extern "C" int RunCProgram(const char* endpoint, const void* descriptor, size_t descriptor_bytes,
                           const unsigned char* keys);

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
  }
  ::rmdir(folder);
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

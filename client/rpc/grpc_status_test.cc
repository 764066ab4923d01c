#include "client/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

namespace kvarve {
namespace {

TEST(GrpcStatusTest, EveryCodeThereAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status sent = ToGrpc(status);
    EXPECT_EQ(sent.error_code(), code);
    EXPECT_EQ(sent.error_message(), "why");
    EXPECT_EQ(FromGrpc(sent), status);
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, UnknownCodesAndLongTexts) {
  EXPECT_EQ(ToGrpcCode(static_cast<absl::StatusCode>(99)), grpc::StatusCode::UNKNOWN);
  // 17 is no code of gRPC, yet a value that its enum may hold (UBSan stops at a larger one).
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(17), "")).code(),
            absl::StatusCode::kUnknown);
  EXPECT_EQ(ToGrpc(absl::InternalError(std::string(5000, 'x'))).error_message().size(),
            kMaxStatusTextBytes);
}

}  // namespace
}  // namespace kvarve

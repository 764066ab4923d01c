#include "client/cpp/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace kvarve::client {
namespace {

class EnvironmentTest : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {"KVARVE_ENDPOINT",
                                           "KVARVE_TOKEN_FILE",
                                           "KVARVE_TLS_CA_FILE",
                                           "KVARVE_TLS_CERTIFICATE_FILE",
                                           "KVARVE_TLS_KEY_FILE",
                                           "KVARVE_TLS_SERVER_NAME",
                                           "KVARVE_INSECURE_PLAINTEXT_OFF_LOOPBACK"};
  EnvironmentTest() { Clear(); }
  ~EnvironmentTest() override { Clear(); }
  static void Clear() {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static void SetAll() {
    for (const char* name : kNames) ::setenv(name, (std::string("of ") + name).c_str(), 1);
  }
};

TEST_F(EnvironmentTest, WithoutAnyItIsTheSocket) {
  ClientOptions options;
  ResolveEndpoint(&options);
  EXPECT_EQ(options.endpoint, "unix:///run/kvarve/kvarved.sock");
  ::setenv("KVARVE_ENDPOINT", "", 1);
  ::setenv("KVARVE_TOKEN_FILE", "token", 1);
  options = ClientOptions();
  ResolveEndpoint(&options);
  EXPECT_EQ(options.endpoint, "unix:///run/kvarve/kvarved.sock");
  EXPECT_EQ(options.token_file, "");
}

TEST_F(EnvironmentTest, TheEndpointComesWithItsCredentials) {
  SetAll();
  ClientOptions options;
  options.tls.key_file = "given";
  ResolveEndpoint(&options);
  EXPECT_EQ(options.endpoint, "of KVARVE_ENDPOINT");
  EXPECT_EQ(options.token_file, "of KVARVE_TOKEN_FILE");
  EXPECT_EQ(options.tls.ca_file, "of KVARVE_TLS_CA_FILE");
  EXPECT_EQ(options.tls.certificate_file, "of KVARVE_TLS_CERTIFICATE_FILE");
  EXPECT_EQ(options.tls.key_file, "given");
  EXPECT_EQ(options.tls.server_name, "of KVARVE_TLS_SERVER_NAME");
  EXPECT_FALSE(options.insecure_plaintext_off_loopback);  // "of ..." is no yes
  ::setenv("KVARVE_INSECURE_PLAINTEXT_OFF_LOOPBACK", "true", 1);
  options = ClientOptions();
  ResolveEndpoint(&options);
  EXPECT_TRUE(options.insecure_plaintext_off_loopback);
}

// No credentials of the environment go to an endpoint that the program names.
TEST_F(EnvironmentTest, WhoNamesAnEndpointNamesItsCredentials) {
  SetAll();
  ::setenv("KVARVE_INSECURE_PLAINTEXT_OFF_LOOPBACK", "1", 1);
  ClientOptions options;
  options.endpoint = "kvarves://elsewhere:1";
  ResolveEndpoint(&options);
  EXPECT_EQ(options.endpoint, "kvarves://elsewhere:1");
  EXPECT_EQ(options.token_file + options.tls.ca_file + options.tls.certificate_file +
                options.tls.key_file + options.tls.server_name,
            "");
  EXPECT_FALSE(options.insecure_plaintext_off_loopback);
}

TEST_F(EnvironmentTest, AClientIsMadeForIt) {
  ::setenv("KVARVE_ENDPOINT", "tcp://nowhere", 1);
  const absl::Status refused = Client::Create(ClientOptions()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("tcp://nowhere"), std::string::npos) << refused;
}

}  // namespace
}  // namespace kvarve::client

#include "tests/integration/test_certificates.h"

#include <chrono>
#include <cstdint>
#include <utility>

namespace kvarve::testing {
namespace {

constexpr int64_t kBefore = 60, kAfter = 86'400;

int64_t Seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Issued MakeAuthority(const std::string& name) {
  return NewAuthority(name, Seconds() - kBefore, Seconds() + kAfter).value();
}

Issued Issue(const Issued& authority, const std::string& uri, bool server,
             std::vector<std::string> hosts) {
  return IssueCertificate(
             authority,
             {uri, {uri}, std::move(hosts), server, Seconds() - kBefore, Seconds() + kAfter})
      .value();
}

void WritePair(const DaemonProcess& daemon, const std::string& name, const Issued& issued) {
  daemon.Write(name + ".key", issued.key);
  daemon.Write(name + ".pem", issued.certificate);
}

void WriteServer(const DaemonProcess& daemon, const Issued& authority) {
  WritePair(daemon, "server",
            Issue(authority, "kvarve://peer", true, {"127.0.0.1", "cache.example"}));
}

Issued WriteClient(const DaemonProcess& daemon, const std::string& name, const Issued& authority,
                   const std::string& uri) {
  Issued client = Issue(authority, uri);
  WritePair(daemon, name, client);
  return client;
}

void UseTls(DaemonProcess* daemon, const Issued& authority) {
  WriteServer(*daemon, authority);
  daemon->AddFlag("--rpc.tls_client_ca_file=" + daemon->Write("ca.pem", authority.certificate));
  daemon->AddFlag("--rpc.tls_certificate_file=" + daemon->folder() + "/server.pem");
  daemon->AddFlag("--rpc.tls_key_file=" + daemon->folder() + "/server.key");
}

ClientTls TlsOf(const DaemonProcess& daemon, const std::string& name) {
  const std::string& folder = daemon.folder();
  return {folder + "/ca.pem", folder + "/" + name + ".pem", folder + "/" + name + ".key", ""};
}

}  // namespace kvarve::testing

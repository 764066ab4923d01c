// Certificates for tests of a daemon in mutual TLS, all in the daemon's folder.
//
// THREADS: any; no state.  BLOCKS: on files.
#ifndef KVARVE_TESTS_INTEGRATION_TEST_CERTIFICATES_H_
#define KVARVE_TESTS_INTEGRATION_TEST_CERTIFICATES_H_

#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/identity/certificate.h"
#include "tests/integration/daemon_process.h"

namespace kvarve::testing {

// Good for a day from now, as all of these are.
Issued MakeAuthority(const std::string& name);
Issued Issue(const Issued& authority, const std::string& uri, bool server = false,
             std::vector<std::string> hosts = {});
// NAME.key, then NAME.pem.
void WritePair(const DaemonProcess& daemon, const std::string& name, const Issued& issued);
// A new certificate of the daemon's, for its address and "cache.example".
void WriteServer(const DaemonProcess& daemon, const Issued& authority);
// A new one of a client's.
Issued WriteClient(const DaemonProcess& daemon, const std::string& name, const Issued& authority,
                   const std::string& uri = "kvarve://client/default");
// ca.pem and WriteServer, and the flags that make the daemon use them.
void UseTls(DaemonProcess* daemon, const Issued& authority);
// What a client of the name shows, and ca.pem.
ClientTls TlsOf(const DaemonProcess& daemon, const std::string& name);

}  // namespace kvarve::testing

#endif  // KVARVE_TESTS_INTEGRATION_TEST_CERTIFICATES_H_

// A port for a process that a test or bench starts. THREADS: any.
#ifndef KVARVE_STORAGE_TESTING_FREE_PORT_H_
#define KVARVE_STORAGE_TESTING_FREE_PORT_H_

namespace kvarve {

// A TCP port of loopback that nobody has now; 0: there is none. Not one that the kernel gives to
// whoever connects, if it can be: a client that tries to reach a daemon that is down would be given
// the daemon's own port in the end, be connected to itself, and keep the daemon from coming back.
int FreePort();

}  // namespace kvarve

#endif  // KVARVE_STORAGE_TESTING_FREE_PORT_H_

// A port for a process that a test or bench starts. THREADS: any.
#ifndef KVARVE_STORAGE_TESTING_FREE_PORT_H_
#define KVARVE_STORAGE_TESTING_FREE_PORT_H_

namespace kvarve {

// A TCP port of loopback that nobody listens on now; 0: there is none.
int FreePort();

}  // namespace kvarve

#endif  // KVARVE_STORAGE_TESTING_FREE_PORT_H_

// What _rpc hands to _native: a client::RemotePlaneFactory, under a name that changes whenever
// client/cpp/remote.h does. THREADS: any.
#ifndef KVARVE_CLIENT_PYTHON_NATIVE_RPC_CAPSULE_H_
#define KVARVE_CLIENT_PYTHON_NATIVE_RPC_CAPSULE_H_

namespace kvarve::python {

inline constexpr char kRemotePlaneCapsule[] = "kvarve.RemotePlaneFactory 2";

}  // namespace kvarve::python

#endif  // KVARVE_CLIENT_PYTHON_NATIVE_RPC_CAPSULE_H_

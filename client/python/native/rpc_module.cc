// kvarve._rpc: the way to daemons of other hosts, for _native. A module of its own, so that a
// process that needs only its own host's daemon loads no gRPC.
#include <pybind11/pybind11.h>

#include "client/python/native/rpc_capsule.h"
#include "client/rpc/grpc_plane.h"

PYBIND11_MODULE(_rpc, module) {
  module.attr("factory") = pybind11::capsule(
      reinterpret_cast<void*>(&kvarve::client::MakeGrpcPlane), kvarve::python::kRemotePlaneCapsule);
}

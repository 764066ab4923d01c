// What Client for Python asks about its tenant. THREADS: with the interpreter's lock held.
#ifndef KVARVE_CLIENT_PYTHON_NATIVE_EVENT_BINDING_H_
#define KVARVE_CLIENT_PYTHON_NATIVE_EVENT_BINDING_H_

#include <pybind11/pybind11.h>

#include "client/python/native/client_binding.h"

namespace kvarve::python {

// EventStream, tenant_stats and watch_events.
void BindEvents(pybind11::module_& module, pybind11::class_<PyClient>& client);

}  // namespace kvarve::python

#endif  // KVARVE_CLIENT_PYTHON_NATIVE_EVENT_BINDING_H_

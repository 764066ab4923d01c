// kvarve._native: libkvarve and the engine's data path for Python. Calls that may wait release the
// interpreter's lock.
#include "client/python/native/casts.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "libkvarve for Python; use the names that the package kvarve exports";
  kvarve::python::BindCasts(module);
  kvarve::python::BindHash(module);
  kvarve::python::BindClient(module);
  kvarve::python::BindEngine(module);
  kvarve::python::BindAttention(module);
}

// Values that cross between Python and libkvarve: statuses to kvarve.Error, keys, descriptors,
// buffers. THREADS: with the interpreter's lock held.
#ifndef KVARVE_CLIENT_PYTHON_NATIVE_CASTS_H_
#define KVARVE_CLIENT_PYTHON_NATIVE_CASTS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/block/block_key.h"
#include "storage/block/namespace.h"

namespace kvarve::python {

// Block keys in C++: long chains cross to Python and back without a copy a key.
struct Keys {
  std::vector<BlockKey> keys;
  int key_bytes = BlockKey::kMaxBytes;
};

// Raises kvarve.Error with the status's code and message. REQUIRES: !status.ok().
[[noreturn]] void Raise(const absl::Status& status);
inline void OkOrRaise(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T ValueOrRaise(absl::StatusOr<T> result) {
  if (!result.ok()) Raise(result.status());
  return *std::move(result);
}

// Runs what may wait without the interpreter's lock.
template <typename Call>
auto WithoutGil(Call&& call) {
  pybind11::gil_scoped_release release;
  return call();
}

// A whole number of type T. ValueError names it; the interpreter's own message would show all other
// arguments, blocks included.
template <typename T>
T Number(const pybind11::object& object, const char* name) {
  try {
    return object.cast<T>();
  } catch (const pybind11::cast_error&) {
    throw pybind11::value_error(std::string(name) + " is a whole number from 0 to " +
                                std::to_string(std::numeric_limits<T>::max()));
  }
}

// From Keys, or from a sequence of bytes objects, all of 16 or all of 32 bytes (ValueError on
// others).
Keys ToKeys(const pybind11::handle& object);
BlockKey ToKey(const pybind11::handle& object);
pybind11::bytes FromKey(const BlockKey& key, int key_bytes);

// A descriptor as keyword arguments; an unknown name is a TypeError that says which.
NamespaceDescriptor ToDescriptor(const pybind11::dict& fields);
pybind11::dict FromDescriptor(const NamespaceDescriptor& descriptor);

// A contiguous buffer held while C++ reads it without the interpreter's lock.
class ReadBuffer {
 public:
  explicit ReadBuffer(const pybind11::handle& object);
  ReadBuffer(ReadBuffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;
  ReadBuffer& operator=(ReadBuffer&&) = delete;
  ~ReadBuffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  const std::byte* data() const { return static_cast<const std::byte*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

void BindAttention(pybind11::module_& module);
void BindCasts(pybind11::module_& module);
void BindHash(pybind11::module_& module);
void BindClient(pybind11::module_& module);
void BindEngine(pybind11::module_& module);

}  // namespace kvarve::python

#endif  // KVARVE_CLIENT_PYTHON_NATIVE_CASTS_H_

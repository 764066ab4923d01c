// The chain hash: keys of a request's blocks, extended as its tokens grow.
#include <pybind11/stl.h>

#include <span>
#include <string>
#include <vector>

#include "client/python/native/casts.h"
#include "storage/block/prefix_hash.h"

namespace py = pybind11;

namespace kvarve::python {
namespace {

// Token ids from any sequence of ints, or from a buffer of 32-bit ids. A negative id is a
// ValueError.
void AppendTokens(const py::handle& object, std::vector<uint32_t>* tokens) {
  py::object items =
      py::reinterpret_steal<py::object>(PySequence_Fast(object.ptr(), "tokens must be a sequence"));
  if (!items) throw py::error_already_set();
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(items.ptr());
  PyObject** data = PySequence_Fast_ITEMS(items.ptr());
  tokens->reserve(tokens->size() + static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    const unsigned long long id = PyLong_AsUnsignedLongLong(data[i]);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (id > UINT32_MAX) throw py::value_error("a token id does not fit 32 bits");
    tokens->push_back(static_cast<uint32_t>(id));
  }
}

class ChainHasher {
 public:
  ChainHasher(uint32_t block_tokens, const std::vector<std::string>& extras, int key_bytes)
      : key_bytes_(key_bytes), hasher_(block_tokens, extras, key_bytes) {}

  // Adds tokens that follow the ones already given; returns the number of whole blocks.
  size_t Extend(const py::handle& tokens) {
    AppendTokens(tokens, &tokens_);
    py::gil_scoped_release release;
    hasher_.Extend(tokens_);
    return hasher_.keys().size();
  }
  size_t tokens() const { return tokens_.size(); }
  Keys Slice(size_t begin, size_t end) const {
    const std::vector<BlockKey>& all = hasher_.keys();
    if (begin > end || end > all.size()) throw py::index_error("no such blocks");
    return Keys{
        {all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end)},
        key_bytes_};
  }
  size_t blocks() const { return hasher_.keys().size(); }

 private:
  int key_bytes_;
  std::vector<uint32_t> tokens_;
  PrefixHasher hasher_;
};

void CheckShape(uint32_t block_tokens, int key_bytes) {
  if (block_tokens == 0) throw py::value_error("block_tokens must be positive");
  if (key_bytes != 16 && key_bytes != 32) throw py::value_error("key_bytes must be 16 or 32");
}

}  // namespace

void BindHash(py::module_& module) {
  module.attr("CHAIN_HASH_VERSION") = kChainHashVersion;
  py::class_<ChainHasher>(module, "ChainHasher",
                          "Keys of one request's blocks, extended as it grows.")
      .def(py::init(
               [](uint32_t block_tokens, const std::vector<std::string>& extras, int key_bytes) {
                 CheckShape(block_tokens, key_bytes);
                 return ChainHasher(block_tokens, extras, key_bytes);
               }),
           py::arg("block_tokens"), py::arg("extras") = std::vector<std::string>{},
           py::arg("key_bytes") = 32)
      .def("extend", &ChainHasher::Extend, py::arg("tokens"))
      .def("keys", &ChainHasher::Slice, py::arg("begin"), py::arg("end"))
      .def_property_readonly("tokens", &ChainHasher::tokens)
      .def_property_readonly("blocks", &ChainHasher::blocks);
  module.def(
      "chain_keys",
      [](const py::object& tokens, uint32_t block_tokens, const std::vector<std::string>& extras,
         int key_bytes) {
        CheckShape(block_tokens, key_bytes);
        ChainHasher hasher(block_tokens, extras, key_bytes);
        return hasher.Slice(0, hasher.Extend(tokens));
      },
      py::arg("tokens"), py::arg("block_tokens"), py::arg("extras") = std::vector<std::string>{},
      py::arg("key_bytes") = 32);
}

}  // namespace kvarve::python

#include "client/python/native/casts.h"

#include <pybind11/stl.h>

#include <cstring>
#include <string>

namespace py = pybind11;

namespace kvarve::python {
namespace {

PyObject* g_error = nullptr;  // kvarve.Error; owned by the module for the process's life

const char* CodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

// One list of a descriptor's fields serves both directions.
template <typename Visitor>
void VisitFields(NamespaceDescriptor& d, Visitor&& visit) {
  visit("model", d.model);
  visit("model_digest", d.model_digest);
  visit("tokenizer_digest", d.tokenizer_digest);
  visit("layout_version", d.layout_version);
  visit("layer_begin", d.layer_begin);
  visit("layer_count", d.layer_count);
  visit("layer_total", d.layer_total);
  visit("kv_head_begin", d.kv_head_begin);
  visit("kv_head_count", d.kv_head_count);
  visit("kv_head_total", d.kv_head_total);
  visit("k_dim", d.k_dim);
  visit("v_dim", d.v_dim);
  visit("block_tokens", d.block_tokens);
  visit("block_bytes", d.block_bytes);
  visit("key_bytes", d.key_bytes);
  visit("hash_version", d.hash_version);
  visit("adapter_digest", d.adapter_digest);
  visit("attention_backend", d.attention_backend);
  visit("kv_scales", d.kv_scales);
  visit("generation", d.generation);
  visit("client_salt", d.client_salt);
  visit("extra", d.extra);
}

}  // namespace

void Raise(const absl::Status& status) {
  py::object error = py::reinterpret_borrow<py::object>(g_error)(
      std::string(status.message().data(), status.message().size()));
  error.attr("code") = CodeName(status.code());
  PyErr_SetObject(g_error, error.ptr());
  throw py::error_already_set();
}

BlockKey ToKey(const py::handle& object) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object.ptr(), &data, &size) != 0) throw py::error_already_set();
  if (size != 16 && size != 32) throw py::value_error("a block key has 16 or 32 bytes");
  BlockKey key;
  std::memcpy(key.bytes.data(), data, static_cast<size_t>(size));
  return key;
}

Keys ToKeys(const py::handle& object) {
  if (py::isinstance<Keys>(object)) return object.cast<Keys>();
  Keys result;
  for (const py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
    const BlockKey key = ToKey(item);
    const int key_bytes = static_cast<int>(PyBytes_GET_SIZE(item.ptr()));
    if (!result.keys.empty() && key_bytes != result.key_bytes) {
      throw py::value_error(
          "a list of keys of 16 and of 32 bytes: those of one namespace are alike");
    }
    result.keys.push_back(key);
    result.key_bytes = key_bytes;
  }
  return result;
}

py::bytes FromKey(const BlockKey& key, int key_bytes) {
  return py::bytes(reinterpret_cast<const char*>(key.bytes.data()), static_cast<size_t>(key_bytes));
}

NamespaceDescriptor ToDescriptor(const py::dict& fields) {
  NamespaceDescriptor descriptor;
  size_t known = 0;
  if (fields.contains("element_type")) {
    descriptor.element_type = fields["element_type"].cast<ElementType>();
    ++known;
  }
  VisitFields(descriptor, [&](const char* name, auto& field) {
    if (!fields.contains(name)) return;
    field = fields[name].cast<std::decay_t<decltype(field)>>();
    ++known;
  });
  if (known != fields.size()) {
    const py::dict valid = FromDescriptor(descriptor);
    for (const auto& item : fields) {
      if (!valid.contains(item.first)) {
        throw py::type_error("a namespace has no field " +
                             py::repr(item.first).cast<std::string>());
      }
    }
  }
  return descriptor;
}

py::dict FromDescriptor(const NamespaceDescriptor& descriptor) {
  NamespaceDescriptor copy = descriptor;
  py::dict fields;
  fields["element_type"] = copy.element_type;
  VisitFields(copy, [&](const char* name, auto& field) { fields[name] = py::cast(field); });
  return fields;
}

ReadBuffer::ReadBuffer(const py::handle& object) {
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0)
    throw py::error_already_set();
}

void BindCasts(py::module_& module) {
  g_error = PyErr_NewExceptionWithDoc("kvarve.Error",
                                      "A call to kvarve failed; `code` is the status code's name.",
                                      PyExc_RuntimeError, nullptr);
  if (g_error == nullptr) throw py::error_already_set();
  py::setattr(py::handle(g_error), "code", py::str("UNKNOWN"));
  module.attr("Error") = py::handle(g_error);

  py::enum_<ElementType>(module, "ElementType")
      .value("OPAQUE", ElementType::kOpaque)
      .value("BF16", ElementType::kBf16)
      .value("FP16", ElementType::kFp16)
      .value("FP32", ElementType::kFp32)
      .value("FP8_E4M3", ElementType::kFp8E4m3)
      .value("FP8_E5M2", ElementType::kFp8E5m2)
      .value("INT8", ElementType::kInt8);

  py::class_<Keys>(module, "Keys", "An immutable sequence of block keys.")
      .def(py::init([](const py::object& keys) { return ToKeys(keys); }))
      .def("__len__", [](const Keys& self) { return self.keys.size(); })
      .def("__getitem__",
           [](const Keys& self, Py_ssize_t i) {
             const auto size = static_cast<Py_ssize_t>(self.keys.size());
             if (i < 0) i += size;
             if (i < 0 || i >= size) throw py::index_error();
             return FromKey(self.keys[static_cast<size_t>(i)], self.key_bytes);
           })
      .def("__getitem__",
           [](const Keys& self, const py::slice& slice) {
             size_t start = 0, stop = 0, step = 0, length = 0;
             if (!slice.compute(self.keys.size(), &start, &stop, &step, &length))
               throw py::error_already_set();
             Keys part{{}, self.key_bytes};
             for (size_t i = 0; i < length; ++i) part.keys.push_back(self.keys[start + i * step]);
             return part;
           })
      .def("__eq__",
           [](const Keys& self, const Keys& other) {
             return self.key_bytes == other.key_bytes && self.keys == other.keys;
           })
      .def(py::pickle(
          [](const Keys& self) {
            return py::make_tuple(self.key_bytes,
                                  py::bytes(reinterpret_cast<const char*>(self.keys.data()),
                                            self.keys.size() * sizeof(BlockKey)));
          },
          [](const py::tuple& state) {
            Keys keys{{}, state[0].cast<int>()};
            const std::string bytes = state[1].cast<std::string>();
            if (bytes.size() % sizeof(BlockKey) != 0) throw py::value_error("keys: a wrong length");
            keys.keys.resize(bytes.size() / sizeof(BlockKey));
            if (!bytes.empty()) std::memcpy(keys.keys.data(), bytes.data(), bytes.size());
            return keys;
          }));
}

}  // namespace kvarve::python

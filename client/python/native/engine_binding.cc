// Engine: EngineSide for Python.
#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "client/python/native/casts.h"
#include "client/python/native/client_binding.h"
#include "client/python/native/engine_side.h"

namespace py = pybind11;

namespace kvarve::python {
namespace {

using LayerTuple =
    std::tuple<uint64_t, uint64_t, uint64_t, std::array<int64_t, 4>, std::array<int64_t, 4>>;

// The argument `name`, taken out of `more`.
template <typename T>
T Take(const py::dict& more, const char* name, T otherwise) {
  return more.attr("pop")(name, std::move(otherwise)).template cast<T>();
}

// `more`: threads, verify, device, load_staging_bytes, and what reaches another host.
std::unique_ptr<EngineSide> MakeEngine(const std::string& endpoint, const std::string& engine_id,
                                       const Ranks& ranks, const std::string& name,
                                       uint64_t staging_bytes, double timeout, double put_timeout,
                                       const std::vector<LayerTuple>& layers, uint64_t pages,
                                       const py::dict& descriptor, const py::kwargs& more) {
  EngineSide::Options options;
  options.threads = Take(more, "threads", 2);
  options.verify = Take(more, "verify", true);
  options.device = Take(more, "device", std::string("cpu"));
  options.load_staging_bytes = Take(more, "load_staging_bytes", uint64_t{256} << 20);
  options.client = MakeOptions(endpoint, engine_id, "worker", ranks, name, staging_bytes, timeout,
                               put_timeout, more);
  options.descriptor = ToDescriptor(descriptor);
  for (const auto& [address, storage, storage_bytes, shape, strides] : layers) {
    options.layers.push_back({address, storage, storage_bytes, shape, strides});
  }
  options.pages = pages;
  return ValueOrRaise(WithoutGil([&] { return EngineSide::Create(options); }));
}

void Load(EngineSide& self, const std::string& request, const Keys& keys, const std::string& grants,
          const std::vector<int64_t>& pages, uint64_t first_token, uint64_t end_token,
          uint64_t stream) {
  OkOrRaise(WithoutGil([&]() -> absl::Status {
    absl::StatusOr<GrantSet> set = DecodeGrants(grants);
    if (!set.ok()) return set.status();
    return self.Load(request, keys.keys, *std::move(set), pages, first_token, end_token, stream);
  }));
}

std::vector<std::tuple<std::string, std::string, double>> Results(EngineSide& self, double wait) {
  const auto nanos = static_cast<int64_t>(wait * 1e9);
  std::vector<std::tuple<std::string, std::string, double>> list;
  for (LoadEnd& end : WithoutGil([&] { return self.Results(nanos); })) {
    list.emplace_back(std::move(end.request), std::move(end.error),
                      static_cast<double>(end.nanos) / 1e9);
  }
  return list;
}

size_t Save(EngineSide& self, const Keys& keys, const py::object& parent, uint32_t first_block,
            const std::vector<int64_t>& pages, uint64_t access, uint64_t stream) {
  std::optional<BlockKey> before;
  if (!parent.is_none()) before = ToKey(parent);
  return ValueOrRaise(
      WithoutGil([&] { return self.Save(keys.keys, before, first_block, pages, access, stream); }));
}

py::dict TakeCounts(EngineSide& self) {
  const EngineCounts counts = self.TakeCounts();
  py::dict dict;
  const auto add = [&](const char* name, uint64_t value) {
    if (value > 0) dict[name] = value;
  };
  add("load_blocks", counts.load_blocks);
  add("load_bytes", counts.load_bytes);
  add("save_blocks", counts.save_blocks);
  add("save_bytes", counts.save_bytes);
  add("save_dropped_blocks", counts.save_dropped_blocks);
  add("save_failed_blocks", counts.save_failed_blocks);
  const auto add_each = [&](const char* name, std::string_view reason, uint64_t value) {
    add((std::string(name) + "|" + std::string(reason)).c_str(), value);
  };
  for (size_t i = 0; i < kHostPaths; ++i)
    add_each("host_path_blocks", HostPathName(static_cast<HostPath>(i)), counts.load_paths[i]);
  for (size_t i = 0; i < kMoveMethods; ++i)
    add_each("device_moves", MoveMethodName(static_cast<MoveMethod>(i)), counts.moves[i]);
  add("device_moves_without_room", counts.moves_without_room);
  add("registration_failures", counts.registration_failures);
  return dict;
}

}  // namespace

void BindEngine(py::module_& module) {
  py::class_<EngineSide>(module, "Engine",
                         "A worker's data path: pages, loader threads, the saver.")
      .def(py::init(&MakeEngine), py::kw_only(), py::arg("endpoint"), py::arg("engine_id"),
           py::arg("ranks"), py::arg("name"), py::arg("staging_bytes"), py::arg("timeout"),
           py::arg("put_timeout"), py::arg("layers"), py::arg("pages"), py::arg("descriptor"))
      .def("use_salt", &EngineSide::UseSalt, py::call_guard<py::gil_scoped_release>(),
           py::arg("client_salt"))
      .def(
          "wait_ready",
          [](EngineSide& self, double timeout) {
            OkOrRaise(
                WithoutGil([&] { return self.WaitReady(static_cast<int64_t>(timeout * 1e9)); }));
          },
          py::arg("timeout") = 10.0)
      .def("load", &Load, py::arg("request"), py::arg("keys"), py::arg("grants"), py::arg("pages"),
           py::arg("first_token"), py::arg("end_token"), py::arg("stream") = 0)
      .def("results", &Results, py::arg("wait") = 0.0)
      .def("save", &Save, py::arg("keys"), py::arg("parent"), py::arg("first_block"),
           py::arg("pages"), py::arg("access"), py::arg("stream") = 0)
      .def_property_readonly("host_path",
                             [](const EngineSide& self) { return std::string(self.host_path()); })
      .def_property_readonly("pending_saves", &EngineSide::pending_saves)
      .def("take_counts", &TakeCounts)
      .def(
          "inject",
          [](EngineSide& self, const std::string& kind, const py::bytes& key, double seconds) {
            OkOrRaise(self.faults().Add(kind, ToKey(key), static_cast<int64_t>(seconds * 1e9)));
          },
          py::arg("kind"), py::arg("key"), py::arg("seconds") = 0.0)
      .def(
          "close",
          [](EngineSide& self, double wait) { self.Close(static_cast<int64_t>(wait * 1e9)); },
          py::arg("wait") = 0.0, py::call_guard<py::gil_scoped_release>());
}

}  // namespace kvarve::python

// Client, Namespace, View and Grants for Python.
#include "client/python/native/client_binding.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "client/cpp/environment.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/remote.h"
#include "client/python/native/casts.h"
#include "client/python/native/event_binding.h"
#include "client/python/native/rpc_capsule.h"
#include "client/trace/trace.h"
#include "storage/block/layout.h"

namespace py = pybind11;

namespace kvarve::python {
namespace {

constexpr uint64_t kGrantsVersion = 1;
constexpr size_t kGrantsHeaderBytes = 5 * sizeof(uint64_t);

constexpr std::string_view kRemoteSchemes[] = {"kvarve://", "kvarves://"};

void LoadRemotePlane() {
  const py::capsule factory = py::module_::import("kvarve._rpc").attr("factory");
  if (std::strcmp(factory.name(), kRemotePlaneCapsule) != 0) {
    throw py::import_error("kvarve._rpc is of another version than kvarve._native");
  }
  client::UseRemotePlane(reinterpret_cast<client::RemotePlaneFactory>(factory.get_pointer<void>()));
}

struct PyView {
  std::shared_ptr<Client> client;
  std::shared_ptr<View> view;
  size_t block_bytes = 0;
  client::ForkStamp stamp = {};

  void CheckProcess() const {
    if (!stamp.InChild()) return;
    Raise(absl::FailedPreconditionError(
        "a view does not live in a forked child: its memory is not there; make a new client"));
  }
  // IndexError: no such block.
  const View& At(size_t i) const {
    CheckProcess();
    if (view == nullptr || i >= view->size()) throw py::index_error();
    return *view;
  }
};
// One block of a view as a read-only buffer; it keeps the lease. In a forked child it is empty:
// pybind11 lets no exception out of a buffer's making.
struct PyBlock {
  PyView of;
  const std::byte* data = nullptr;
  size_t size() const { return of.stamp.InChild() ? 0 : of.block_bytes; }
};

class PyNamespace {
 public:
  PyNamespace(std::shared_ptr<Client> client, ClientNamespace handle)
      : client_(std::move(client)), handle_(handle) {}
  ClientNamespace handle() const { return handle_; }
  uint64_t block_bytes() const { return client_->block_bytes(handle_); }

  py::tuple Lookup(const py::object& keys, double hold, const py::object& recompute_us) const {
    const auto cost = Number<uint32_t>(recompute_us, "recompute_us");
    const Keys list = KeysOf(keys);
    const LookupResult result = ValueOrRaise(
        WithoutGil([&] { return client_->Lookup(handle_, list.keys, Nanos(hold), cost); }));
    return py::make_tuple(result.hit_blocks, result.host_blocks, result.hold);
  }

  py::list Get(const py::object& keys, uint64_t request_id, bool verify) const {
    const Keys list = KeysOf(keys);
    const size_t size = block_bytes();
    // Asks first, so that a miss costs no memory.
    size_t hit =
        ValueOrRaise(WithoutGil([&] { return client_->Lookup(handle_, list.keys); })).hit_blocks;
    std::vector<py::bytes> blocks;
    std::vector<std::byte*> destinations;
    for (size_t i = 0; i < hit; ++i) {
      PyObject* block = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
      if (block == nullptr) throw py::error_already_set();
      blocks.push_back(py::reinterpret_steal<py::bytes>(block));
      destinations.push_back(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(block)));
    }
    if (hit > 0) {
      hit = ValueOrRaise(WithoutGil([&] {
        return client_->Get(handle_, std::span(list.keys).first(hit), destinations, request_id,
                            verify);
      }));
    }
    py::list result;
    for (size_t i = 0; i < hit; ++i) result.append(blocks[i]);
    return result;
  }

  PyView Acquire(const py::object& keys, uint64_t request_id) const {
    const Keys list = KeysOf(keys);
    return PyView{client_, std::make_shared<View>(ValueOrRaise(WithoutGil([&] {
                    return client_->Acquire(handle_, list.keys, request_id);
                  }))),
                  block_bytes()};
  }

  PyGrants AcquireGrants(const py::object& keys, uint64_t request_id) const {
    const Keys list = KeysOf(keys);
    return PyGrants{ValueOrRaise(
        WithoutGil([&] { return client_->AcquireGrants(handle_, list.keys, request_id); }))};
  }

  py::object Put(const py::object& keys, const py::sequence& blocks, const py::object& parent,
                 const py::object& first_depth, const py::object& request_id,
                 const py::object& recompute_us) const {
    const Keys list = KeysOf(keys);
    const size_t size = block_bytes();
    std::vector<ReadBuffer> buffers;
    std::vector<const std::byte*> sources;
    for (const py::handle block : blocks) {
      buffers.emplace_back(block);
      if (buffers.back().size() != size) {
        throw py::value_error("a block of this namespace has " + std::to_string(size) + " bytes");
      }
      sources.push_back(buffers.back().data());
    }
    if (sources.size() != list.keys.size()) throw py::value_error("as many blocks as keys");
    PutChain chain;
    if (!parent.is_none()) chain.parent = KeysOf(py::make_tuple(parent)).keys.front();
    chain.first_depth = Number<uint32_t>(first_depth, "first_depth");
    chain.keys = list.keys;
    chain.request_id = Number<uint64_t>(request_id, "request_id");
    chain.recompute_us = Number<uint32_t>(recompute_us, "recompute_us");
    std::string reason;
    const std::vector<PutOutcome> outcomes =
        ValueOrRaise(WithoutGil([&] { return client_->Put(handle_, chain, sources, &reason); }));
    py::object names = py::module_::import("kvarve.outcomes").attr("Outcomes")(reason);
    for (const PutOutcome outcome : outcomes) names.attr("append")(PutOutcomeName(outcome));
    return names;
  }

  size_t Touch(const py::object& keys, uint64_t request_id) const {
    const Keys list = KeysOf(keys);
    return ValueOrRaise(WithoutGil([&] { return client_->Touch(handle_, list.keys, request_id); }));
  }

  py::tuple Prefetch(const py::object& keys, uint64_t request_id) const {
    const Keys list = KeysOf(keys);
    const PrefetchResult result =
        ValueOrRaise(WithoutGil([&] { return client_->Prefetch(handle_, list.keys, request_id); }));
    return py::make_tuple(result.hit_blocks, result.started_blocks);
  }

  uint64_t Invalidate(const py::object& keys) const {
    const Keys list = keys.is_none() ? Keys{} : KeysOf(keys);
    if (!keys.is_none() && list.keys.empty()) return 0;  // an empty list is no whole namespace
    return ValueOrRaise(WithoutGil([&] { return client_->Invalidate(handle_, list.keys); }));
  }

 private:
  Keys KeysOf(const py::object& object) const {
    Keys list = ToKeys(object);
    const auto own = static_cast<int>(client_->key_bytes(handle_));
    if (!list.keys.empty() && list.key_bytes != own) {
      throw py::value_error("keys of " + std::to_string(list.key_bytes) +
                            " bytes; this namespace's have " + std::to_string(own));
    }
    return list;
  }

  std::shared_ptr<Client> client_;
  ClientNamespace handle_;
};

void SetRemote(const py::kwargs& remote, ClientOptions* options) {
  const std::pair<std::string_view, std::string*> files[] = {
      {"token_file", &options->token_file},
      {"tls_ca_file", &options->tls.ca_file},
      {"tls_certificate_file", &options->tls.certificate_file},
      {"tls_key_file", &options->tls.key_file},
      {"tls_server_name", &options->tls.server_name}};
  for (const auto& [key, value] : remote) {
    const auto name = key.cast<std::string>();
    if (name == "insecure_plaintext_off_loopback" || name == "hedge_reads") {
      (name == "hedge_reads" ? options->hedge_reads : options->insecure_plaintext_off_loopback) =
          value.cast<bool>();
      continue;
    }
    const auto* const file =
        std::ranges::find(files, name, &std::pair<std::string_view, std::string*>::first);
    if (file == std::end(files)) throw py::type_error("unknown argument \"" + name + "\"");
    *file->second = value.cast<std::string>();
  }
}

PyClient MakeClient(const std::string& endpoint, const std::string& engine_id,
                    const std::string& role, const Ranks& ranks, const std::string& name,
                    uint64_t staging_bytes, double timeout, double put_timeout,
                    const py::kwargs& remote) {
  return PyClient{ValueOrRaise(Client::Create(MakeOptions(
      endpoint, engine_id, role, ranks, name, staging_bytes, timeout, put_timeout, remote)))};
}

py::dict StateOf(const PyClient& self) {
  const ClientState state = self.client->State();
  py::dict dict;
  dict["connected"] = state.connected;
  dict["breaker_open"] = state.breaker_open;
  dict["incarnation"] = state.incarnation;
  dict["daemon_version"] = state.daemon_version;
  dict["timeouts"] = state.timeouts;
  dict["reconnects"] = state.reconnects;
  dict["checksum_mismatches"] = state.checksum_mismatches;
  dict["hedged_reads"] = state.hedged_reads;
  dict["last_error"] = state.last_error;
  return dict;
}

std::string Admin(const PyClient& self, const std::string& json) {
  return ValueOrRaise(WithoutGil([&] { return self.client->Admin(json); }));
}

void WaitReady(const PyClient& self, double timeout) {
  OkOrRaise(WithoutGil([&] { return self.client->WaitReady(Nanos(timeout)); }));
}

// A method that takes its call's traceparent besides.
template <typename Result, typename... Args>
auto Traced(Result (PyNamespace::*method)(Args...) const) {
  return [method](const PyNamespace& self, Args... args, const std::string& traceparent) {
    if (!traceparent.empty() && TraceOf(traceparent).empty()) {
      throw py::value_error("traceparent is not one of W3C trace context");
    }
    const TraceScope scope(traceparent);
    return (self.*method)(args...);
  };
}

void BindNamespace(py::module_& module) {
  const auto traceparent = [] { return py::arg("traceparent") = ""; };
  py::class_<PyNamespace>(module, "Namespace")
      .def_property_readonly("handle", &PyNamespace::handle)
      .def_property_readonly("block_bytes", &PyNamespace::block_bytes)
      .def("lookup", Traced(&PyNamespace::Lookup), py::arg("keys"), py::arg("hold") = 0.0,
           py::arg("recompute_us") = 0, traceparent())
      .def("get", Traced(&PyNamespace::Get), py::arg("keys"), py::arg("request_id") = 0,
           py::arg("verify") = true, traceparent())
      .def("view", Traced(&PyNamespace::Acquire), py::arg("keys"), py::arg("request_id") = 0,
           traceparent())
      .def("acquire", Traced(&PyNamespace::AcquireGrants), py::arg("keys"),
           py::arg("request_id") = 0, traceparent())
      .def("put", Traced(&PyNamespace::Put), py::arg("keys"), py::arg("blocks"),
           py::arg("parent") = py::none(), py::arg("first_depth") = 0, py::arg("request_id") = 0,
           py::arg("recompute_us") = 0, traceparent())
      .def("touch", Traced(&PyNamespace::Touch), py::arg("keys"), py::arg("request_id") = 0,
           traceparent())
      .def("prefetch", Traced(&PyNamespace::Prefetch), py::arg("keys"), py::arg("request_id") = 0,
           traceparent())
      .def("invalidate", Traced(&PyNamespace::Invalidate), py::arg("keys") = py::none(),
           traceparent());
}

void BindViews(py::module_& module) {
  py::class_<PyBlock>(module, "Block", py::buffer_protocol(),
                      "One leased block: a read-only buffer.")
      .def_buffer([](PyBlock& self) {
        return py::buffer_info(const_cast<std::byte*>(self.data), 1,
                               py::format_descriptor<uint8_t>::format(), 1, {self.size()},
                               {size_t{1}}, /*readonly=*/true);
      })
      .def("__len__", &PyBlock::size);
  py::class_<PyView>(module, "View",
                     "Leased blocks in place; the lease ends with the last buffer made of it.")
      .def("__len__",
           [](const PyView& self) { return self.view == nullptr ? 0 : self.view->size(); })
      .def("__getitem__",
           [](const PyView& self, size_t i) {
             return py::memoryview(py::cast(PyBlock{self, self.At(i).block(i)}));
           })
      .def("checksum", [](const PyView& self, size_t i) { return self.At(i).checksum(i); })
      .def_property_readonly("over_lease_cap",
                             [](const PyView& self) {
                               return self.view != nullptr && self.view->grants().over_lease_cap;
                             })
      .def("release", [](PyView& self) { self.view.reset(); })
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](PyView& self, const py::args&) { self.view.reset(); });
}

void BindGrants(py::module_& module) {
  py::class_<PyGrants>(module, "Grants",
                       "Where leased blocks lie, for another process of the same engine.")
      .def("__len__", [](const PyGrants& self) { return self.set.items.size(); })
      .def_property_readonly("lease", [](const PyGrants& self) { return self.set.lease; })
      .def_property_readonly("over_lease_cap",
                             [](const PyGrants& self) { return self.set.over_lease_cap; })
      .def("to_bytes", [](const PyGrants& self) { return py::bytes(EncodeGrants(self.set)); })
      .def_static("from_bytes", [](const std::string& bytes) {
        return PyGrants{ValueOrRaise(DecodeGrants(bytes))};
      });
}

}  // namespace

// More than a century is a century.
int64_t Nanos(double seconds) {
  if (!(seconds >= 0)) throw py::value_error("a time is a number of seconds, at least 0");
  return static_cast<int64_t>(std::min(seconds, 3.2e9) * 1e9);
}

ClientOptions MakeOptions(const std::string& endpoint, const std::string& engine_id,
                          const std::string& role, const Ranks& ranks, const std::string& name,
                          uint64_t staging_bytes, double timeout, double put_timeout,
                          const py::kwargs& remote) {
  ClientOptions options;
  options.endpoint = endpoint;
  SetRemote(remote, &options);
  client::ResolveEndpoint(&options);
  const auto begins = [&](std::string_view scheme) { return options.endpoint.starts_with(scheme); };
  if (std::ranges::any_of(kRemoteSchemes, begins)) LoadRemotePlane();
  options.engine_id = engine_id;
  if (role == "tool") {
    options.role = local::Role::kTool;
  } else if (role == "scheduler") {
    options.role = local::Role::kScheduler;
    // It asks for all waiting requests one after the other in a step of its engine: the first that
    // gets no answer has to do for the others. An answer that was only late closes the breaker.
    options.breaker_failures = 1;
  } else if (role == "worker") {
    options.role = local::Role::kWorker;
  } else {
    throw py::value_error("role is tool, scheduler or worker");
  }
  std::tie(options.dp_rank, options.pp_rank, options.tp_rank) = ranks;
  options.client_name = name;
  options.staging_bytes = staging_bytes;
  options.timeout_nanos = Nanos(timeout);
  options.put_timeout_nanos = Nanos(put_timeout);
  return options;
}

std::string EncodeGrants(const GrantSet& grants) {
  const uint64_t header[] = {kGrantsVersion, grants.incarnation, grants.lease, grants.block_bytes,
                             grants.over_lease_cap ? 1u : 0u};
  static_assert(sizeof(header) == kGrantsHeaderBytes);
  std::string bytes(reinterpret_cast<const char*>(header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(grants.items.data()),
               grants.items.size() * sizeof(local::GrantItem));
  return bytes;
}

absl::StatusOr<GrantSet> DecodeGrants(std::string_view bytes) {
  uint64_t header[5];
  if (bytes.size() < sizeof(header) ||
      (bytes.size() - sizeof(header)) % sizeof(local::GrantItem) != 0) {
    return absl::InvalidArgumentError("grants: a wrong length");
  }
  std::memcpy(header, bytes.data(), sizeof(header));
  if (header[0] != kGrantsVersion) return absl::InvalidArgumentError("grants: an unknown version");
  GrantSet grants;
  grants.incarnation = header[1];
  grants.lease = header[2];
  grants.block_bytes = header[3];
  grants.over_lease_cap = header[4] != 0;
  bytes.remove_prefix(sizeof(header));
  grants.items.resize(bytes.size() / sizeof(local::GrantItem));
  if (!bytes.empty()) std::memcpy(grants.items.data(), bytes.data(), bytes.size());
  return grants;
}

void BindClient(py::module_& module) {
  module.def("block_bytes", [](const py::kwargs& fields) {
    return BlockLayout::Of(ToDescriptor(fields)).BlockBytes();
  });
  module.def("namespace_id", [](const py::kwargs& fields) {
    const NamespaceDescriptor descriptor = ToDescriptor(fields);
    OkOrRaise(ValidateDescriptor(descriptor));
    const NamespaceDigest digest = DigestOf(descriptor);
    return py::bytes(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  });
  BindNamespace(module);
  BindViews(module);
  BindGrants(module);
  py::class_<PyClient> client(module, "Client");
  client
      .def(py::init(&MakeClient), py::arg("endpoint") = "", py::arg("engine_id") = "",
           py::arg("role") = "tool", py::arg("ranks") = std::make_tuple(0, 0, 0),
           py::arg("name") = "kvarve-python", py::arg("staging_bytes") = uint64_t{64} << 20,
           py::arg("timeout") = 0.02, py::arg("put_timeout") = 5.0)
      .def("wait_ready", &WaitReady, py::arg("timeout") = 10.0)
      .def("state", &StateOf)
      .def("namespace",
           [](const PyClient& self, const py::kwargs& fields) {
             const NamespaceDescriptor descriptor = ToDescriptor(fields);
             return PyNamespace(
                 self.client,
                 ValueOrRaise(WithoutGil([&] { return self.client->OpenNamespace(descriptor); })));
           })
      .def(
          "release", [](const PyClient& self, uint64_t lease) { self.client->Release(lease); },
          py::arg("lease"), py::call_guard<py::gil_scoped_release>())
      .def("admin_json", &Admin, py::arg("request"));
  BindEvents(module, client);
}

}  // namespace kvarve::python

#include "client/python/native/event_binding.h"

#include <memory>
#include <span>
#include <string>

#include "client/cpp/events.h"
#include "client/python/native/casts.h"

namespace py = pybind11;

namespace kvarve::python {
namespace {

py::bytes BytesOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string TextOf(std::string_view text) { return std::string(text); }

struct PyEventStream {
  std::shared_ptr<Client> client;  // outlives the stream
  std::shared_ptr<EventStream> stream;
};

py::dict StatsOf(const PyClient& self) {
  const TenantStats stats =
      ValueOrRaise(WithoutGil([&] { return self.client->ReadTenantStats(); }));
  py::list namespaces;
  for (const TenantNamespace& ns : stats.namespaces) {
    py::dict of;
    of["ns"] = BytesOf(ns.id.bytes);
    of["tenant"] = ns.tenant;
    of["model"] = ns.model;
    of["block_bytes"] = ns.block_bytes;
    of["key_bytes"] = ns.key_bytes;
    namespaces.append(of);
  }
  py::dict dict;
  dict["daemon_version"] = stats.daemon_version;
  dict["incarnation"] = stats.incarnation;
  dict["capacity_bytes"] = stats.capacity_bytes;
  dict["chunk_bytes"] = stats.chunk_bytes;
  dict["used_bytes"] = stats.used_bytes;
  dict["leased_bytes"] = stats.leased_bytes;
  dict["blocks"] = stats.blocks;
  dict["lookups"] = stats.lookups;
  dict["lookup_keys"] = stats.lookup_keys;
  dict["hit_blocks"] = stats.hit_blocks;
  dict["miss_blocks"] = stats.miss_blocks;
  dict["hit_bytes"] = stats.hit_bytes;
  dict["stored_blocks"] = stats.stored_blocks;
  dict["stored_bytes"] = stats.stored_bytes;
  dict["evicted_blocks"] = stats.evicted_blocks;
  dict["namespaces"] = namespaces;
  return dict;
}

PyEventStream Watch(const PyClient& self, double timeout, uint64_t incarnation, uint64_t sequence) {
  const int64_t nanos = Nanos(timeout);
  return {self.client, ValueOrRaise(WithoutGil([&] {
            return self.client->WatchEvents(nanos, {incarnation, sequence});
          }))};
}

// (incarnation, sequence, events): where to go on, and what came.
py::tuple Next(const PyEventStream& self, double wait) {
  const int64_t nanos = Nanos(wait);
  const EventBatch batch = ValueOrRaise(WithoutGil([&] { return self.stream->Next(nanos); }));
  py::list events;
  for (const BlockEvent& event : batch.events) {
    events.append(py::make_tuple(event.sequence, TextOf(EventKindName(event.kind)),
                                 BytesOf(event.ns.bytes),
                                 BytesOf(std::span(event.key.bytes).first(event.key_bytes)),
                                 event.depth, TextOf(BlockTierName(event.tier))));
  }
  return py::make_tuple(batch.next.incarnation, batch.next.sequence, events);
}

}  // namespace

void BindEvents(py::module_& module, py::class_<PyClient>& client) {
  py::class_<PyEventStream>(module, "EventStream", "A watch: use kvarve.Client.events.")
      .def("next", &Next, py::arg("wait"))
      .def(
          "cancel", [](const PyEventStream& self) { self.stream->Cancel(); },
          py::call_guard<py::gil_scoped_release>());
  client.def("tenant_stats", &StatsOf)
      .def("watch_events", &Watch, py::arg("timeout"), py::arg("incarnation") = 0,
           py::arg("sequence") = 0);
}

}  // namespace kvarve::python

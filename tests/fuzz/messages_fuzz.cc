// Goal: no packet makes a parser of the data plane read outside it, run long or accept what it then
// cannot hand out. Method: any bytes, parsed by their own type; what parses is read to its last
// item. Under a sanitizer.
#include "client/local/messages.h"
#include "client/local/messages_testing.h"
#include "storage/base/units.h"
#include "tests/fuzz/fuzz.h"

namespace kvarve::local {
namespace {

// Reads all that a parsed request with keys promises.
uint64_t ReadKeys(std::span<const uint8_t> packet, int extras_per_key) {
  absl::StatusOr<KeysView> view = ParseKeys(packet, extras_per_key);
  if (!view.ok()) return 0;
  uint64_t sum = 0;
  for (size_t i = 0; i < view->body.keys; ++i) {
    sum += view->Key(i).Word(0) + view->Key(i).Word(3);
    if (extras_per_key == 1) sum += view->Extra(i);
  }
  return sum;
}

template <typename Body, typename Item>
uint64_t ReadItems(std::span<const uint8_t> packet, uint32_t Body::*count) {
  Body body;
  std::span<const uint8_t> items;
  if (!ParseBody(packet, &body, &items).ok()) return 0;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < body.*count; ++i) {
    const Item item = ItemAt<Item>(items, i);
    sum += reinterpret_cast<const uint8_t&>(item);
  }
  return sum;
}

void ReadAll(std::span<const uint8_t> packet) {
  volatile uint64_t sink = 0;
  sink = sink + static_cast<uint64_t>(ParseAny(packet).code());
  sink = sink + ReadKeys(packet, 0) + ReadKeys(packet, 1);
  sink = sink + ReadItems<GrantBody, GrantItem>(packet, &GrantBody::blocks);
  sink = sink + ReadItems<PutReplyBody, uint8_t>(packet, &PutReplyBody::blocks);
  sink = sink + ReadItems<ReadReplyBody, uint64_t>(packet, &ReadReplyBody::blocks);
  sink = sink + ReadItems<ReleaseBody, uint64_t>(packet, &ReleaseBody::leases);
  KV_CHECK(!ParseError(packet).ok());
}

// What parses as an opening is built again to the same bytes: two encodings of one message do not
// exist.
void CheckOpening(std::span<const uint8_t> packet) {
  const std::string_view bytes(reinterpret_cast<const char*>(packet.data()), packet.size());
  absl::StatusOr<OpenNamespace> open = ParseOpenNamespace(packet);
  if (open.ok()) {
    KV_CHECK(BuildOpenNamespace(*open, 0).substr(sizeof(Header)) == bytes.substr(sizeof(Header)));
  }
  absl::StatusOr<Hello> hello = ParseHello(packet);
  if (hello.ok() && hello->body.version_max <= kVersionMax) {
    KV_CHECK(BuildHello(*hello, 0).substr(sizeof(Header)) == bytes.substr(sizeof(Header)));
  }
  absl::StatusOr<Welcome> welcome = ParseWelcome(packet);
  if (welcome.ok()) {
    KV_CHECK(BuildWelcome(*welcome, 0).substr(sizeof(Header)) == bytes.substr(sizeof(Header)));
  }
}

}  // namespace
}  // namespace kvarve::local

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> packet(data, size);
  kvarve::local::ReadAll(packet);
  kvarve::local::CheckOpening(packet);
  // Behind a header that fits, the bodies themselves.
  if (size >= sizeof(kvarve::local::Header) && size <= kvarve::local::kMaxMessageBytes) {
    std::vector<uint8_t> fitted(packet.begin(), packet.end());
    const uint32_t body_bytes = static_cast<uint32_t>(size - sizeof(kvarve::local::Header));
    std::memcpy(fitted.data() + offsetof(kvarve::local::Header, body_bytes), &body_bytes, 4);
    kvarve::local::ReadAll(fitted);
    kvarve::local::CheckOpening(fitted);
  }
  return 0;
}

namespace kvarve::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const local::GoldenMessage& golden : local::kGoldenMessages) {
    seeds.push_back(*FromHex(golden.hex));
  }
  NamespaceDescriptor descriptor;
  descriptor.model = "m";
  descriptor.extra = {{"a", "b"}};
  seeds.push_back(local::BuildOpenNamespace({descriptor, DigestOf(descriptor)}, 1));
  local::Hello hello;
  hello.engine_id = "e";
  hello.namespaces = {descriptor, descriptor};
  hello.digests = {DigestOf(descriptor), DigestOf(descriptor)};
  seeds.push_back(local::BuildHello(hello, 1));
  return seeds;
}

}  // namespace kvarve::fuzz

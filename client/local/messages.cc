#include "client/local/messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/utf8.h"

namespace kvarve::local {
namespace {

// Bytes taken from the front, each time checked against what is left.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : left_(bytes) {}

  bool Take(size_t size, std::span<const uint8_t>* out) {
    if (size > left_.size()) return false;
    *out = left_.first(size);
    left_ = left_.subspan(size);
    return true;
  }
  bool TakePod(void* pod, size_t size) {
    std::span<const uint8_t> bytes;
    if (!Take(size, &bytes)) return false;
    std::memcpy(pod, bytes.data(), size);
    return true;
  }
  bool TakeText(size_t size, std::string* text) {
    std::span<const uint8_t> bytes;
    if (!Take(size, &bytes)) return false;
    text->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }
  bool empty() const { return left_.empty(); }

 private:
  std::span<const uint8_t> left_;
};

absl::Status Bad(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("data plane: ", what));
}

// UTF-8 without control characters: these names reach logs and metrics.
bool IsText(std::string_view text) {
  if (!IsUtf8(text)) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x20 || byte == 0x7f) return false;
    const bool c1 = byte == 0xc2 && static_cast<uint8_t>(text[i + 1]) < 0xa0;  // U+0080 to U+009F
    if (c1) return false;
  }
  return true;
}

std::span<const uint8_t> BodyOf(std::span<const uint8_t> packet) {
  return packet.subspan(sizeof(Header));
}

size_t MaxKeys(uint16_t type) {
  const bool light =
      type == static_cast<uint16_t>(Type::kLookup) || type == static_cast<uint16_t>(Type::kTouch);
  return light ? kMaxKeysPerLookup : kMaxBlocksPerAcquire;
}

bool IsKeyBytes(uint32_t key_bytes) { return key_bytes == 16 || key_bytes == 32; }

absl::Status TakeNamespace(Reader* reader, NamespaceDescriptor* descriptor,
                           NamespaceDigest* digest) {
  uint32_t size = 0;
  std::string bytes;
  if (!reader->TakePod(&size, sizeof(size)) || size > kMaxDescriptorBytes ||
      !reader->TakeText(size, &bytes) || !reader->TakePod(digest->bytes.data(), 32)) {
    return Bad("a namespace does not fit its message");
  }
  KV_ASSIGN_OR_RETURN(*descriptor, DecodeDescriptor(bytes));
  return absl::OkStatus();
}

void AddNamespace(Builder* builder, const NamespaceDescriptor& descriptor,
                  const NamespaceDigest& digest) {
  const std::string bytes = EncodeDescriptor(descriptor);
  builder->Add(static_cast<uint32_t>(bytes.size())).AddBytes(bytes.data(), bytes.size());
  builder->AddBytes(digest.bytes.data(), digest.bytes.size());
}

}  // namespace

// ---- Building.

Builder::Builder(Type type, uint64_t request, size_t body_bytes) {
  bytes_.reserve(sizeof(Header) + body_bytes);
  Header header;
  header.type = static_cast<uint16_t>(type);
  header.request = request;
  Add(header);
}

Builder& Builder::AddBytes(const void* data, size_t size) {
  if (size > 0) bytes_.append(static_cast<const char*>(data), size);
  return *this;
}

uint8_t* Builder::AddSpace(size_t size) {
  const size_t at = bytes_.size();
  bytes_.resize(at + size);
  return reinterpret_cast<uint8_t*>(bytes_.data()) + at;
}

Builder& Builder::AddKeys(std::span<const BlockKey> keys, uint32_t key_bytes) {
  KV_CHECK(IsKeyBytes(key_bytes));
  if (key_bytes == BlockKey::kMaxBytes) return AddBytes(keys.data(), keys.size_bytes());
  for (const BlockKey& key : keys) AddBytes(key.bytes.data(), key_bytes);
  return *this;
}

std::string Builder::Finish() && {
  KV_CHECK(bytes_.size() <= kMaxMessageBytes);
  const uint32_t body_bytes = static_cast<uint32_t>(bytes_.size() - sizeof(Header));
  std::memcpy(bytes_.data() + offsetof(Header, body_bytes), &body_bytes, sizeof(body_bytes));
  return std::move(bytes_);
}

std::string BuildHello(const Hello& hello, uint64_t request) {
  KV_CHECK(hello.engine_id.size() <= kMaxEngineIdBytes);
  KV_CHECK(hello.client_name.size() <= kMaxEngineIdBytes);
  KV_CHECK(hello.namespaces.size() <= kMaxNamespacesPerHello);
  KV_CHECK(hello.namespaces.size() == hello.digests.size());
  HelloBody body = hello.body;
  body.engine_id_bytes = static_cast<uint16_t>(hello.engine_id.size());
  body.client_name_bytes = static_cast<uint16_t>(hello.client_name.size());
  body.namespaces = static_cast<uint32_t>(hello.namespaces.size());
  Builder builder(Type::kHello, request);
  builder.Add(body)
      .AddBytes(hello.engine_id.data(), hello.engine_id.size())
      .AddBytes(hello.client_name.data(), hello.client_name.size());
  for (size_t i = 0; i < hello.namespaces.size(); ++i) {
    AddNamespace(&builder, hello.namespaces[i], hello.digests[i]);
  }
  return std::move(builder).Finish();
}

std::string BuildOpenNamespace(const OpenNamespace& open, uint64_t request) {
  Builder builder(Type::kOpenNamespace, request);
  AddNamespace(&builder, open.descriptor, open.digest);
  return std::move(builder).Finish();
}

std::string BuildWelcome(const Welcome& welcome, uint64_t request) {
  KV_CHECK(welcome.daemon_version.size() <= kMaxEngineIdBytes);
  KV_CHECK(welcome.namespaces.size() <= kMaxNamespacesPerHello);
  WelcomeBody body = welcome.body;
  body.daemon_version_bytes = static_cast<uint16_t>(welcome.daemon_version.size());
  body.namespaces = static_cast<uint32_t>(welcome.namespaces.size());
  Builder builder(Type::kWelcome, request);
  builder.Add(body).AddBytes(welcome.daemon_version.data(), welcome.daemon_version.size());
  for (const NamespaceOpenedBody& opened : welcome.namespaces) builder.Add(opened);
  return std::move(builder).Finish();
}

std::string BuildError(uint64_t request, const absl::Status& status) {
  KV_CHECK(!status.ok());
  const absl::string_view text = status.message().substr(0, kMaxErrorTextBytes);
  ErrorBody body;
  body.code = static_cast<uint32_t>(status.code());
  body.text_bytes = static_cast<uint32_t>(text.size());
  Builder builder(Type::kError, request);
  builder.Add(body).AddBytes(text.data(), text.size());
  return std::move(builder).Finish();
}

// ---- Parsing.

absl::StatusOr<Header> ParseHeader(std::span<const uint8_t> packet) {
  Header header;
  if (packet.size() < sizeof(Header)) return Bad("a packet is shorter than a header");
  if (packet.size() > kMaxMessageBytes) return Bad("a packet is longer than a message may be");
  std::memcpy(&header, packet.data(), sizeof(Header));
  if (header.body_bytes != packet.size() - sizeof(Header)) {
    return Bad("body_bytes does not match the packet");
  }
  const bool opening = header.type == static_cast<uint16_t>(Type::kHello) ||
                       header.type == static_cast<uint16_t>(Type::kWelcome) ||
                       header.type == static_cast<uint16_t>(Type::kError);
  if (!opening && (header.version < kVersionMin || header.version > kVersionMax)) {
    return absl::InvalidArgumentError(absl::StrCat("data plane: version ", header.version,
                                                   " is not spoken here (", kVersionMin, " to ",
                                                   kVersionMax, ")"));
  }
  return header;
}

absl::StatusOr<std::span<const uint8_t>> ParseFixed(std::span<const uint8_t> packet, void* body,
                                                    size_t body_bytes) {
  KV_RETURN_IF_ERROR(ParseHeader(packet).status());
  const std::span<const uint8_t> bytes = BodyOf(packet);
  if (bytes.size() < body_bytes) return Bad("a message is shorter than its body");
  std::memcpy(body, bytes.data(), body_bytes);
  return bytes.subspan(body_bytes);
}

absl::Status TailMismatch(std::span<const uint8_t> packet) {
  uint16_t type = 0;
  std::memcpy(&type, packet.data(), sizeof(type));
  return absl::InvalidArgumentError(absl::StrCat("data plane: the counts of a message of type ",
                                                 type, " do not match its length"));
}

absl::StatusOr<Hello> ParseHello(std::span<const uint8_t> packet) {
  KV_RETURN_IF_ERROR(ParseHeader(packet).status());
  Reader reader(BodyOf(packet));
  Hello hello;
  HelloBody& body = hello.body;
  if (!reader.TakePod(&body, sizeof(body))) return Bad("HELLO is shorter than its body");
  if (body.version_min == 0 || body.version_min > body.version_max) {
    return Bad("HELLO: the version range is empty");
  }
  if (body.role > static_cast<uint8_t>(Role::kWorker)) return Bad("HELLO: unknown role");
  if (body.engine_id_bytes > kMaxEngineIdBytes || body.client_name_bytes > kMaxEngineIdBytes ||
      !reader.TakeText(body.engine_id_bytes, &hello.engine_id) ||
      !reader.TakeText(body.client_name_bytes, &hello.client_name)) {
    return Bad("HELLO: a name does not fit");
  }
  if (!IsText(hello.engine_id) || !IsText(hello.client_name)) {
    return Bad("HELLO: a name is not UTF-8 text");
  }
  if (body.namespaces > kMaxNamespacesPerHello) return Bad("HELLO: too many namespaces");
  hello.namespaces.resize(body.namespaces);
  hello.digests.resize(body.namespaces);
  for (uint32_t i = 0; i < body.namespaces; ++i) {
    KV_RETURN_IF_ERROR(TakeNamespace(&reader, &hello.namespaces[i], &hello.digests[i]));
  }
  // A client of a later version may append what this one does not know.
  if (!reader.empty() && body.version_max <= kVersionMax) return Bad("HELLO: trailing bytes");
  return hello;
}

absl::StatusOr<OpenNamespace> ParseOpenNamespace(std::span<const uint8_t> packet) {
  KV_RETURN_IF_ERROR(ParseHeader(packet).status());
  Reader reader(BodyOf(packet));
  OpenNamespace open;
  KV_RETURN_IF_ERROR(TakeNamespace(&reader, &open.descriptor, &open.digest));
  if (!reader.empty()) return Bad("OPEN_NAMESPACE: trailing bytes");
  return open;
}

absl::StatusOr<Welcome> ParseWelcome(std::span<const uint8_t> packet) {
  KV_RETURN_IF_ERROR(ParseHeader(packet).status());
  Reader reader(BodyOf(packet));
  Welcome welcome;
  const WelcomeBody& body = welcome.body;
  if (!reader.TakePod(&welcome.body, sizeof(body))) return Bad("WELCOME is shorter than its body");
  if (body.daemon_version_bytes > kMaxEngineIdBytes ||
      !reader.TakeText(body.daemon_version_bytes, &welcome.daemon_version) ||
      !IsText(welcome.daemon_version)) {
    return Bad("WELCOME: the daemon's version is not text that fits");
  }
  if (body.namespaces > kMaxNamespacesPerHello) return Bad("WELCOME: too many namespaces");
  welcome.namespaces.resize(body.namespaces);
  for (NamespaceOpenedBody& opened : welcome.namespaces) {
    if (!reader.TakePod(&opened, sizeof(opened))) return Bad("WELCOME: a namespace does not fit");
  }
  if (!reader.empty()) return Bad("WELCOME: trailing bytes");
  return welcome;
}

absl::StatusOr<KeysView> ParseKeys(std::span<const uint8_t> packet, int extras_per_key) {
  KV_CHECK(extras_per_key == 0 || extras_per_key == 1);
  KV_ASSIGN_OR_RETURN(const Header header, ParseHeader(packet));
  Reader reader(BodyOf(packet));
  KeysView view;
  const KeysBody& body = view.body;
  if (!reader.TakePod(&view.body, sizeof(body))) return Bad("a request is shorter than its body");
  if (!IsKeyBytes(body.key_bytes)) return Bad("key_bytes is neither 16 nor 32");
  if (body.keys == 0 || body.keys > MaxKeys(header.type))
    return Bad("a request has no or too many keys");
  if ((body.flags & ~uint32_t{kHasParent}) != 0) return Bad("a request has an unknown flag");
  const uint8_t* parent_tail = body.parent + body.key_bytes;
  if (std::any_of(parent_tail, std::end(body.parent), [](uint8_t byte) { return byte != 0; })) {
    return Bad("the parent is longer than a key");
  }
  if (!reader.Take(size_t{body.keys} * body.key_bytes, &view.packed_keys) ||
      !reader.Take(size_t{body.keys} * 8 * extras_per_key, &view.packed_extra) || !reader.empty()) {
    return TailMismatch(packet);
  }
  return view;
}

BlockKey KeysView::Key(size_t i) const {
  KV_CHECK(i < body.keys);
  BlockKey key;
  std::memcpy(key.bytes.data(), packed_keys.data() + i * body.key_bytes, body.key_bytes);
  return key;
}

uint64_t KeysView::Extra(size_t i) const { return ItemAt<uint64_t>(packed_extra, i); }

absl::Status ParseError(std::span<const uint8_t> packet) {
  ErrorBody body;
  std::span<const uint8_t> text;
  KV_RETURN_IF_ERROR(ParseBody(packet, &body, &text));
  constexpr uint32_t kLastCode = static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  const bool known = body.code != 0 && body.code <= kLastCode;
  const auto code = known ? static_cast<absl::StatusCode>(body.code) : absl::StatusCode::kUnknown;
  return absl::Status(code,
                      absl::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
}

namespace {
std::optional<size_t> Counted(size_t count, size_t item_bytes, size_t max) {
  if (count > max) return std::nullopt;
  return count * item_bytes;
}
}  // namespace

std::optional<size_t> TailBytes(const GrantBody& body) {
  return Counted(body.blocks, sizeof(GrantItem), kMaxBlocksPerAcquire);
}
std::optional<size_t> TailBytes(const PutReplyBody& body) {
  return Counted(body.blocks, 1, kMaxBlocksPerAcquire);
}
std::optional<size_t> TailBytes(const ReadReplyBody& body) {
  return Counted(body.blocks, sizeof(uint64_t), kMaxBlocksPerAcquire);
}
std::optional<size_t> TailBytes(const InvalidateBody& body) {
  if (!IsKeyBytes(body.key_bytes)) return std::nullopt;
  return Counted(body.keys, body.key_bytes, kMaxKeysPerLookup);
}
std::optional<size_t> TailBytes(const ReleaseBody& body) {
  return Counted(body.leases, sizeof(uint64_t), kMaxLeasesPerRelease);
}
std::optional<size_t> TailBytes(const ErrorBody& body) {
  return Counted(body.text_bytes, 1, kMaxErrorTextBytes);
}
std::optional<size_t> TailBytes(const AdminBody& body) {
  return Counted(body.text_bytes, 1, kMaxMessageBytes);
}

}  // namespace kvarve::local

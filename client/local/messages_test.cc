// Goal: the bytes on the socket are those of docs/formats.md 3, what is built parses back to the
// same, and nothing else parses. Method: golden bytes from a script that shares no code; random
// messages there and back; every cut, extension and wrong count of the golden ones refused.
#include "client/local/messages.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>

#include "client/local/messages_testing.h"
#include "storage/base/units.h"

namespace kvarve::local {
namespace {

using Packet = std::vector<uint8_t>;

std::span<const uint8_t> Bytes(const std::string& message) {
  return {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
}

// A packet at an odd address of its own allocation, so that a sanitizer sees reads past its end and
// unaligned ones.
class Unaligned {
 public:
  explicit Unaligned(std::span<const uint8_t> packet) : bytes_(packet.size() + 1) {
    std::copy(packet.begin(), packet.end(), bytes_.begin() + 1);
  }
  std::span<const uint8_t> get() const { return std::span<const uint8_t>(bytes_).subspan(1); }

 private:
  Packet bytes_;
};

BlockKey Key(int seed, int bytes) {
  BlockKey key;
  for (int i = 0; i < bytes; ++i) key.bytes[i] = static_cast<uint8_t>(seed * 16 + i);
  return key;
}

template <size_t kBytes>
void FillPattern(uint8_t (&bytes)[kBytes], int seed) {
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<uint8_t>(seed * 16 + i);
}

std::string KeysMessage(Type type, uint64_t request, KeysBody body, std::vector<BlockKey> keys,
                        std::vector<uint64_t> extras = {}) {
  body.keys = static_cast<uint32_t>(keys.size());
  Builder builder(type, request);
  builder.Add(body).AddKeys(keys, body.key_bytes);
  for (uint64_t extra : extras) builder.Add(extra);
  return std::move(builder).Finish();
}

template <typename Body>
std::string Plain(Type type, uint64_t request, const Body& body) {
  return std::move(Builder(type, request).Add(body)).Finish();
}

NamespaceOpenedBody OpenedNamespace() {
  NamespaceOpenedBody opened{.handle = 3, .block_bytes = 4096, .key_bytes = 16};
  FillPattern(opened.ns_id, 9);
  return opened;
}

std::string TextMessage(Type type, uint64_t request, std::string_view text) {
  Builder builder(type, request);
  builder.Add(AdminBody{.text_bytes = static_cast<uint32_t>(text.size())});
  builder.AddBytes(text.data(), text.size());
  return std::move(builder).Finish();
}

// The golden messages as this code builds them.
std::map<std::string, std::string> BuildAll() {
  std::map<std::string, std::string> all;
  Hello hello;
  hello.body = {.role = 2,
                .dp_rank = 3,
                .pp_rank = 4,
                .tp_rank = 5,
                .send_buffer_bytes = 0x80000,
                .staging_bytes = 1 << 26};
  hello.engine_id = "eng";
  hello.client_name = "tool";
  all["hello"] = BuildHello(hello, 1);
  Welcome welcome;
  welcome.body = {.version = 1,
                  .incarnation = 0x1122334455667788,
                  .session = 7,
                  .staging_bytes = 1 << 20,
                  .max_keys = 8192,
                  .max_blocks = 4096,
                  .max_message_bytes = kMaxMessageBytes};
  FillPattern(welcome.body.session_token, 5);
  welcome.daemon_version = "0.1.0";
  welcome.namespaces = {OpenedNamespace(), {.code = 7}};
  all["welcome"] = BuildWelcome(welcome, 1);
  all["namespace_opened"] = Plain(Type::kNamespaceOpened, 2, OpenedNamespace());
  all["lookup"] = KeysMessage(Type::kLookup, 3, {.ns = 3, .key_bytes = 32, .hold_ms = 5000},
                              {Key(1, 32), Key(2, 32)});
  all["lookup_reply"] = Plain(Type::kLookupReply, 3, LookupReplyBody{2, 1, 0xabc});
  all["acquire"] =
      KeysMessage(Type::kAcquire, 4, {.ns = 3, .key_bytes = 16, .request_id = 77}, {Key(1, 16)});
  all["grant"] = std::move(Builder(Type::kGrant, 4)
                               .Add(GrantBody{9, 0x1122334455667788, 4096, 1, 0})
                               .Add(GrantItem{2, 8192, 0xfedcba9876543210}))
                     .Finish();
  all["release"] = std::move(Builder(Type::kRelease, 0)
                                 .Add(ReleaseBody{.leases = 2})
                                 .Add(uint64_t{9})
                                 .Add(uint64_t{10}))
                       .Finish();
  KeysBody put{.ns = 3,
               .key_bytes = 16,
               .flags = kHasParent,
               .request_id = 77,
               .first_depth = 5,
               .recompute_us = 250};
  std::memcpy(put.parent, Key(3, 16).bytes.data(), 32);
  all["put"] = KeysMessage(Type::kPut, 5, put, {Key(1, 16), Key(2, 16)}, {0, 4096});
  all["put_reply"] =
      std::move(
          Builder(Type::kPutReply, 5).Add(PutReplyBody{2, 20}).Add(uint8_t{0}).Add(uint8_t{3}))
          .Finish();
  all["read"] = KeysMessage(Type::kRead, 6, {.ns = 3, .key_bytes = 16, .request_id = 77},
                            {Key(1, 16)}, {65536});
  all["read_reply"] = std::move(Builder(Type::kReadReply, 6)
                                    .Add(ReadReplyBody{.blocks = 1})
                                    .Add(uint64_t{0x0123456789abcdef}))
                          .Finish();
  all["touch"] =
      KeysMessage(Type::kTouch, 7, {.ns = 3, .key_bytes = 16, .request_id = 77}, {Key(4, 16)});
  all["touch_reply"] = Plain(Type::kTouchReply, 7, CountReplyBody{1});
  const std::vector<BlockKey> one = {Key(4, 16)};
  all["invalidate"] = std::move(Builder(Type::kInvalidate, 8)
                                    .Add(InvalidateBody{.ns = 3, .keys = 1, .key_bytes = 16})
                                    .AddKeys(one, 16))
                          .Finish();
  all["invalidate_reply"] = Plain(Type::kInvalidateReply, 8, CountReplyBody{6});
  all["report_corrupt"] =
      KeysMessage(Type::kReportCorrupt, 9, {.ns = 3, .key_bytes = 16}, {Key(4, 16)});
  all["report_corrupt_reply"] = Plain(Type::kReportCorruptReply, 9, CountReplyBody{1});
  all["sync"] = Builder(Type::kSync, 10).Finish();
  all["sync_reply"] = Plain(Type::kSyncReply, 10, CountReplyBody{4});
  all["admin"] = TextMessage(Type::kAdmin, 11, R"({"op":"stats"})");
  all["admin_reply"] = TextMessage(Type::kAdminReply, 11, "{}");
  all["pool_add"] = Plain(Type::kPoolAdd, 0, PoolAddBody{2, 1 << 28, 4096});
  all["pool_drop"] = Plain(Type::kPoolDrop, 0, PoolDropBody{2});
  all["pool_dropped"] = Plain(Type::kPoolDropped, 0, PoolDropBody{2});
  ByeBody bye{.session = 7};
  FillPattern(bye.token, 5);
  all["bye"] = Plain(Type::kBye, 0, bye);
  all["error"] = BuildError(12, absl::FailedPreconditionError("no room"));
  return all;
}

TEST(Messages, LieAsTheFormatSays) {
  std::map<std::string, std::string> built = BuildAll();
  for (const GoldenMessage& golden : kGoldenMessages) {
    ASSERT_TRUE(built.contains(golden.name)) << golden.name;
    EXPECT_EQ(ToHex(Bytes(built[golden.name])), golden.hex) << golden.name;
  }
  EXPECT_EQ(built.size(), std::size(kGoldenMessages));
}

void SetBodyBytes(Packet* packet) {
  const uint32_t bytes = static_cast<uint32_t>(packet->size() - sizeof(Header));
  std::memcpy(packet->data() + offsetof(Header, body_bytes), &bytes, sizeof(bytes));
}

TEST(Messages, OnlyTheirExactLengthParses) {
  for (const auto& [name, message] : BuildAll()) {
    EXPECT_TRUE(ParseAny(Unaligned(Bytes(message)).get()).ok()) << name;
    for (size_t size = 0; size < message.size(); ++size) {
      Packet cut(message.begin(), message.begin() + size);
      EXPECT_EQ(ParseAny(Unaligned(cut).get()).code(), absl::StatusCode::kInvalidArgument) << name;
      if (size < sizeof(Header)) continue;
      SetBodyBytes(&cut);
      EXPECT_EQ(ParseAny(Unaligned(cut).get()).code(), absl::StatusCode::kInvalidArgument)
          << name << " cut to " << size;
    }
    Packet longer(message.begin(), message.end());
    longer.push_back(0);
    EXPECT_FALSE(ParseAny(longer).ok()) << name;
    SetBodyBytes(&longer);
    EXPECT_FALSE(ParseAny(longer).ok()) << name;
  }
}

TEST(Messages, HeaderOfAnotherVersionIsRefusedExceptWhileOpening) {
  for (const auto& [name, message] : BuildAll()) {
    Packet packet(message.begin(), message.end());
    packet[2] = kVersionMax + 1;
    const bool opening = name == "hello" || name == "welcome" || name == "error";
    EXPECT_EQ(ParseHeader(packet).ok(), opening) << name;
  }
}

TEST(Messages, LargestOnesFit) {
  const std::vector<BlockKey> keys(kMaxKeysPerLookup, Key(1, 32));
  const std::string lookup = KeysMessage(Type::kLookup, 1, {.key_bytes = 32}, keys);
  EXPECT_LE(lookup.size(), kMaxMessageBytes);
  EXPECT_TRUE(ParseKeys(Bytes(lookup), 0).ok());
  const std::vector<BlockKey> blocks(kMaxBlocksPerAcquire, Key(1, 32));
  const std::string put = KeysMessage(Type::kPut, 1, {.key_bytes = 32}, blocks,
                                      std::vector<uint64_t>(kMaxBlocksPerAcquire, 7));
  EXPECT_LE(put.size(), kMaxMessageBytes);
  EXPECT_TRUE(ParseKeys(Bytes(put), 1).ok());
  // One more of each is refused, though it would fit.
  EXPECT_FALSE(ParseKeys(Bytes(KeysMessage(Type::kLookup, 1, {.key_bytes = 32},
                                           std::vector<BlockKey>(kMaxKeysPerLookup + 1))),
                         0)
                   .ok());
  EXPECT_FALSE(ParseKeys(Bytes(KeysMessage(Type::kAcquire, 1, {.key_bytes = 32},
                                           std::vector<BlockKey>(kMaxBlocksPerAcquire + 1))),
                         0)
                   .ok());
}

TEST(Messages, CountsThatOverflowAreRefused) {
  for (uint32_t count : {0xffffffffu, 0x80000000u, 0x08000001u, 0x20000000u}) {
    KeysBody body{.keys = count, .key_bytes = 32};
    EXPECT_FALSE(ParseKeys(Bytes(Plain(Type::kLookup, 1, body)), 0).ok());
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kGrant, 1, GrantBody{.blocks = count}))).ok());
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kRelease, 1, ReleaseBody{.leases = count}))).ok());
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kPutReply, 1, PutReplyBody{.blocks = count}))).ok());
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kReadReply, 1, ReadReplyBody{.blocks = count}))).ok());
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kError, 1, ErrorBody{1, count}))).ok());
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kAdmin, 1, AdminBody{.text_bytes = count}))).ok());
    const InvalidateBody invalidate{.keys = count, .key_bytes = 32};
    EXPECT_FALSE(ParseAny(Bytes(Plain(Type::kInvalidate, 1, invalidate))).ok());
  }
}

TEST(Messages, KeysHaveOneForm) {
  const std::vector<BlockKey> keys = {Key(1, 16)};
  EXPECT_TRUE(ParseKeys(Bytes(KeysMessage(Type::kLookup, 1, {.key_bytes = 16}, keys)), 0).ok());
  for (uint32_t key_bytes : {0u, 8u, 17u, 24u, 33u, 64u}) {
    std::string message = KeysMessage(Type::kLookup, 1, {.key_bytes = 16}, keys);
    std::memcpy(message.data() + sizeof(Header) + offsetof(KeysBody, key_bytes), &key_bytes, 4);
    EXPECT_FALSE(ParseKeys(Bytes(message), 0).ok()) << key_bytes;
  }
  EXPECT_FALSE(ParseKeys(Bytes(KeysMessage(Type::kLookup, 1, {.key_bytes = 32}, {})), 0).ok());
  const KeysBody unknown_flag{.key_bytes = 16, .flags = 2};
  EXPECT_FALSE(ParseKeys(Bytes(KeysMessage(Type::kLookup, 1, unknown_flag, keys)), 0).ok());
  KeysBody long_parent{.key_bytes = 16, .flags = kHasParent};
  long_parent.parent[16] = 1;
  EXPECT_FALSE(ParseKeys(Bytes(KeysMessage(Type::kPut, 1, long_parent, keys, {0})), 1).ok());
}

TEST(Messages, RandomKeysComeBack) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint32_t key_bytes = random() % 2 == 0 ? 16 : 32;
    std::vector<BlockKey> keys(1 + random() % 300);
    std::vector<uint64_t> extras(keys.size());
    for (BlockKey& key : keys) {
      for (uint32_t i = 0; i < key_bytes; ++i) key.bytes[i] = static_cast<uint8_t>(random());
    }
    for (uint64_t& extra : extras) extra = random();
    const KeysBody body{.ns = static_cast<uint32_t>(random()),
                        .key_bytes = key_bytes,
                        .request_id = random(),
                        .first_depth = static_cast<uint32_t>(random())};
    const std::string message = KeysMessage(Type::kPut, random(), body, keys, extras);
    const Unaligned packet(Bytes(message));
    absl::StatusOr<KeysView> view = ParseKeys(packet.get(), 1);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->body.ns, body.ns);
    EXPECT_EQ(view->body.request_id, body.request_id);
    EXPECT_EQ(view->body.first_depth, body.first_depth);
    ASSERT_EQ(view->body.keys, keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(view->Key(i), keys[i]);
      ASSERT_EQ(view->Extra(i), extras[i]);
    }
  }
}

NamespaceDescriptor Descriptor(int i) {
  NamespaceDescriptor descriptor;
  descriptor.model = "model-" + std::to_string(i);
  descriptor.model_digest = std::string(i % 7, 'd') + '\0' + "binary";
  descriptor.element_type = ElementType::kOpaque;
  descriptor.block_tokens = 16;
  descriptor.block_bytes = 4096 + i;
  descriptor.hash_version = "test";
  descriptor.extra = {{"layer", std::to_string(i)}};
  return descriptor;
}

TEST(Messages, HelloComesBackWithAllNamespaces) {
  for (size_t count : {size_t{0}, size_t{1}, kMaxNamespacesPerHello}) {
    Hello hello;
    hello.body.role = static_cast<uint8_t>(Role::kScheduler);
    hello.engine_id = "motor-\xc3\xbc";
    for (size_t i = 0; i < count; ++i) {
      hello.namespaces.push_back(Descriptor(static_cast<int>(i)));
      hello.digests.push_back(DigestOf(hello.namespaces.back()));
    }
    const std::string message = BuildHello(hello, 42);
    absl::StatusOr<Hello> parsed = ParseHello(Unaligned(Bytes(message)).get());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->engine_id, hello.engine_id);
    EXPECT_EQ(parsed->client_name, "");
    EXPECT_EQ(parsed->namespaces, hello.namespaces);
    EXPECT_EQ(parsed->digests, hello.digests);
    EXPECT_EQ(ParseHeader(Bytes(message))->request, 42u);
  }
}

TEST(Messages, OpenNamespaceIsLengthDescriptorDigest) {
  const NamespaceDescriptor descriptor = Descriptor(5);
  const std::string message = BuildOpenNamespace({descriptor, DigestOf(descriptor)}, 3);
  const std::string encoded = EncodeDescriptor(descriptor);
  const NamespaceDigest digest = DigestOf(descriptor);
  std::string expected(4, '\0');
  expected[0] = static_cast<char>(encoded.size() & 0xff);
  expected[1] = static_cast<char>(encoded.size() >> 8);
  expected += encoded;
  expected.append(reinterpret_cast<const char*>(digest.bytes.data()), 32);
  EXPECT_EQ(message.substr(sizeof(Header)), expected);
  absl::StatusOr<OpenNamespace> parsed = ParseOpenNamespace(Bytes(message));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->descriptor, descriptor);
  EXPECT_EQ(parsed->digest, digest);
  for (size_t size = sizeof(Header); size < message.size(); ++size) {
    Packet cut(message.begin(), message.begin() + size);
    SetBodyBytes(&cut);
    EXPECT_FALSE(ParseOpenNamespace(Unaligned(cut).get()).ok()) << size;
  }
}

TEST(Messages, HelloOfALaterVersionMayCarryMore) {
  Hello hello;
  hello.body.version_max = kVersionMax + 1;
  std::string message = BuildHello(hello, 1) + "news";
  Packet packet(message.begin(), message.end());
  SetBodyBytes(&packet);
  packet[2] = kVersionMax + 1;
  EXPECT_TRUE(ParseHello(packet).ok());
}

TEST(Messages, HelloRefusesWhatIsNoText) {
  for (const char* bad : {"a\nb", "\x7f", "\xff", "\xc0\x80", "\xc3", "\xe0\x80\x80",
                          "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc2\x85", "a\tb"}) {
    Hello hello;
    hello.engine_id = bad;
    EXPECT_FALSE(ParseHello(Bytes(BuildHello(hello, 1))).ok()) << ToHex(Bytes(hello.engine_id));
  }
  for (const char* good : {"", "vllm-0", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"}) {
    Hello hello;
    hello.engine_id = good;
    EXPECT_TRUE(ParseHello(Bytes(BuildHello(hello, 1))).ok()) << good;
  }
}

TEST(Messages, HelloRefusesRangesAndRoles) {
  auto parse = [](HelloBody body) {
    Hello hello;
    hello.body = body;
    return ParseHello(Bytes(BuildHello(hello, 1))).ok();
  };
  EXPECT_TRUE(parse({}));
  EXPECT_FALSE(parse({.version_min = 0}));
  EXPECT_FALSE(parse({.version_min = 2, .version_max = 1}));
  EXPECT_FALSE(parse({.role = 3}));
}

TEST(Messages, ErrorsKeepCodeAndTextAndAreNeverOk) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(ParseError(Bytes(BuildError(1, status))), status);
  }
  for (uint32_t code : {0u, 17u, 0xffffffffu}) {
    const std::string message = Plain(Type::kError, 1, ErrorBody{.code = code});
    EXPECT_EQ(ParseError(Bytes(message)).code(), absl::StatusCode::kUnknown);
  }
  const absl::Status long_one = absl::InternalError(std::string(5000, 'x'));
  EXPECT_EQ(ParseError(Bytes(BuildError(1, long_one))).message().size(), kMaxErrorTextBytes);
}

}  // namespace
}  // namespace kvarve::local

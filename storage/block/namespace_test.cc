#include "storage/block/namespace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/abseil.h"
#include "storage/block/golden_testing.h"

namespace kvarve {
namespace {

using ::testing::HasSubstr;

NamespaceDescriptor FromJson(const nlohmann::json& f) {
  NamespaceDescriptor d;
  d.model = Unhex(f["model"]);
  d.model_digest = Unhex(f["model_digest"]);
  d.tokenizer_digest = Unhex(f["tokenizer_digest"]);
  d.element_type = static_cast<ElementType>(f["element_type"].get<uint32_t>());
  d.layout_version = f["layout_version"];
  d.layer_begin = f["layer_begin"];
  d.layer_count = f["layer_count"];
  d.layer_total = f["layer_total"];
  d.kv_head_begin = f["kv_head_begin"];
  d.kv_head_count = f["kv_head_count"];
  d.kv_head_total = f["kv_head_total"];
  d.k_dim = f["k_dim"];
  d.v_dim = f["v_dim"];
  d.block_tokens = f["block_tokens"];
  d.block_bytes = f["block_bytes"];
  d.key_bytes = f["key_bytes"];
  d.hash_version = Unhex(f["hash_version"]);
  d.adapter_digest = Unhex(f["adapter_digest"]);
  d.attention_backend = Unhex(f["attention_backend"]);
  d.kv_scales = Unhex(f["kv_scales"]);
  d.generation = f["generation"];
  d.client_salt = Unhex(f["client_salt"]);
  for (const auto& entry : f["extra"]) d.extra[Unhex(entry[0])] = Unhex(entry[1]);
  d.tenant = Unhex(f["tenant"]);
  d.tenant_salt = Unhex(f["tenant_salt"]);
  return d;
}

NamespaceDescriptor Valid() { return FromJson(ReadGolden("namespace.json")[0]["fields"]); }

std::string RandomText(std::mt19937_64& random, size_t max) {
  std::string text(random() % (max + 1), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

NamespaceDescriptor Random(std::mt19937_64& random) {
  NamespaceDescriptor d;
  for (std::string* text :
       {&d.model, &d.model_digest, &d.tokenizer_digest, &d.hash_version, &d.adapter_digest,
        &d.attention_backend, &d.kv_scales, &d.client_salt, &d.tenant, &d.tenant_salt}) {
    *text = RandomText(random, 40);
  }
  d.element_type = static_cast<ElementType>(random() % 7);
  for (uint32_t* number :
       {&d.layout_version, &d.layer_begin, &d.layer_count, &d.layer_total, &d.kv_head_begin,
        &d.kv_head_count, &d.kv_head_total, &d.k_dim, &d.v_dim, &d.block_tokens, &d.key_bytes}) {
    *number = static_cast<uint32_t>(random() >> (random() % 64));
  }
  d.block_bytes = random() >> (random() % 64);
  d.generation = random() >> (random() % 64);
  for (size_t i = random() % 4; i > 0; --i) d.extra[RandomText(random, 6)] = RandomText(random, 20);
  return d;
}

TEST(NamespaceGoldenTest, CanonicalBytesDigestAndId) {
  const nlohmann::json golden = ReadGolden("namespace.json");
  ASSERT_EQ(golden.size(), 6u);
  for (const auto& entry : golden) {
    SCOPED_TRACE(entry["name"]);
    const NamespaceDescriptor d = FromJson(entry["fields"]);
    const std::string canonical = Unhex(entry["canonical"]);
    EXPECT_EQ(EncodeDescriptor(d), canonical);
    EXPECT_EQ(DigestOf(d).bytes, UnhexArray<32>(entry["digest"]));
    EXPECT_EQ(IdOf(DigestOf(d)).bytes, UnhexArray<16>(entry["ns_id"]));
    auto decoded = DecodeDescriptor(canonical);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(*decoded == d);
    EXPECT_TRUE(ValidateDescriptor(d).ok()) << ValidateDescriptor(d);
  }
}

TEST(NamespaceCodecTest, DecodeInvertsEncode) {
  const uint64_t seed = 11;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    const NamespaceDescriptor d = Random(random);
    auto decoded = DecodeDescriptor(EncodeDescriptor(d));
    ASSERT_TRUE(decoded.ok()) << "seed " << seed << " round " << i << ": " << decoded.status();
    ASSERT_TRUE(*decoded == d) << "seed " << seed << " round " << i;
  }
}

TEST(NamespaceCodecTest, EveryTruncationIsRefused) {
  for (const auto& entry : ReadGolden("namespace.json")) {
    const std::string canonical = Unhex(entry["canonical"]);
    for (size_t size = 0; size < canonical.size(); ++size) {
      auto decoded = DecodeDescriptor(std::string_view(canonical).substr(0, size));
      ASSERT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument)
          << entry["name"] << " at " << size;
    }
    EXPECT_FALSE(DecodeDescriptor(canonical + '\0').ok());
  }
}

// What decodes at all decodes to something whose encoding it is: there is one encoding of a
// descriptor.
TEST(NamespaceCodecTest, NoMutationIsASecondEncoding) {
  const uint64_t seed = 12;
  std::mt19937_64 random(seed);
  int decoded_mutants = 0;
  for (int i = 0; i < 30000; ++i) {
    const NamespaceDescriptor original = Random(random);
    std::string bytes = EncodeDescriptor(original);
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 20);
          break;
        default:
          bytes.insert(at, RandomText(random, 20));
      }
      if (bytes.empty()) bytes = "k";
    }
    auto decoded = DecodeDescriptor(bytes);
    if (!decoded.ok()) continue;
    ++decoded_mutants;
    ASSERT_EQ(EncodeDescriptor(*decoded), bytes) << "seed " << seed << " round " << i;
  }
  EXPECT_GT(decoded_mutants, 100);
}

// Fields of a hand-made encoding, to make ones that no encoder makes.
struct RawField {
  uint16_t tag;
  std::string body;
};
std::vector<RawField> Split(const std::string& bytes) {
  std::vector<RawField> fields;
  for (size_t at = 18; at < bytes.size();) {
    uint16_t tag;
    uint32_t size;
    std::memcpy(&tag, &bytes[at], 2);
    std::memcpy(&size, &bytes[at + 2], 4);
    fields.push_back({tag, bytes.substr(at + 6, size)});
    at += 6 + size;
  }
  return fields;
}
std::string Join(const std::vector<RawField>& fields) {
  std::string bytes = "kvarve-namespace-1";
  for (const RawField& field : fields) {
    const uint32_t size = field.body.size();
    bytes.append(reinterpret_cast<const char*>(&field.tag), 2);
    bytes.append(reinterpret_cast<const char*>(&size), 4);
    bytes += field.body;
  }
  return bytes;
}

TEST(NamespaceCodecTest, FieldsMissingRepeatedUnknownReorderedOrOfAWrongLength) {
  const std::string canonical = Unhex(ReadGolden("namespace.json")[5]["canonical"]);
  const std::vector<RawField> fields = Split(canonical);
  ASSERT_EQ(fields.size(), 25u);
  ASSERT_EQ(Join(fields), canonical);
  auto refused = [](const std::vector<RawField>& changed) {
    return !DecodeDescriptor(Join(changed)).ok();
  };
  for (size_t i = 0; i < fields.size(); ++i) {
    SCOPED_TRACE(i);
    auto changed = fields;
    changed.erase(changed.begin() + i);
    EXPECT_TRUE(refused(changed)) << "missing";
    changed = fields;
    changed.insert(changed.begin() + i, fields[i]);
    EXPECT_TRUE(refused(changed)) << "repeated";
    changed = fields;
    changed[i].tag = 26;
    EXPECT_TRUE(refused(changed)) << "unknown";
    if (i > 0) {
      changed = fields;
      std::swap(changed[i], changed[i - 1]);
      EXPECT_TRUE(refused(changed)) << "reordered";
    }
  }
  for (const size_t integer : {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20}) {
    ASSERT_EQ(fields[integer].body.size(), 8u);
    for (const size_t size : {0, 4, 7, 9, 16}) {
      auto changed = fields;
      changed[integer].body.resize(size);
      EXPECT_TRUE(refused(changed)) << integer << " of " << size << " bytes";
    }
    auto changed = fields;
    changed[integer].body[4] = 1;  // 2^32
    EXPECT_EQ(refused(changed), integer != 14 && integer != 20) << integer;
  }
  auto changed = fields;
  changed[3].body[0] = 7;
  EXPECT_TRUE(refused(changed)) << "unknown element type";
  changed = fields;
  changed.push_back({26, ""});
  EXPECT_TRUE(refused(changed)) << "one field more";
}

TEST(NamespaceCodecTest, ExtrasMustBeSortedOnceAndWhole) {
  std::vector<RawField> fields = Split(EncodeDescriptor(Valid()));
  auto pack = [](std::initializer_list<std::string> texts) {
    std::string packed;
    for (const std::string& text : texts) {
      const uint32_t size = text.size();
      packed.append(reinterpret_cast<const char*>(&size), 4);
      packed += text;
    }
    return packed;
  };
  auto decodes = [&](std::string body) {
    fields[22].body = std::move(body);
    return DecodeDescriptor(Join(fields)).ok();
  };
  EXPECT_TRUE(decodes(pack({"a", "1", "b", "2"})));
  EXPECT_FALSE(decodes(pack({"b", "1", "a", "2"})));
  EXPECT_FALSE(decodes(pack({"a", "1", "a", "1"})));
  EXPECT_FALSE(decodes(pack({"a", "1", "b"})));
  EXPECT_FALSE(decodes(pack({"a", "1"}) + "x"));
  EXPECT_FALSE(decodes(pack({"a"}) + std::string("\xff\xff\xff\xff", 4)));
}

TEST(NamespaceCodecTest, TheLimitOfBytes) {
  NamespaceDescriptor d = Valid();
  d.client_salt.resize(kMaxDescriptorBytes - EncodeDescriptor(d).size() + d.client_salt.size());
  ASSERT_EQ(EncodeDescriptor(d).size(), kMaxDescriptorBytes);
  EXPECT_TRUE(ValidateDescriptor(d).ok());
  EXPECT_TRUE(DecodeDescriptor(EncodeDescriptor(d)).ok());
  d.client_salt += 'x';
  EXPECT_THAT(ToStd(ValidateDescriptor(d).message()), HasSubstr("16384"));
  EXPECT_THAT(ToStd(DecodeDescriptor(EncodeDescriptor(d)).status().message()), HasSubstr("16384"));
}

TEST(NamespaceValidationTest, NamesTheField) {
  const std::pair<const char*, std::function<void(NamespaceDescriptor&)>> cases[] = {
      {"element_type", [](auto& d) { d.element_type = static_cast<ElementType>(7); }},
      {"layout_version", [](auto& d) { d.layout_version = 2; }},
      {"model_digest", [](auto& d) { d.model_digest.clear(); }},
      {"hash_version", [](auto& d) { d.hash_version.clear(); }},
      {"key_bytes", [](auto& d) { d.key_bytes = 20; }},
      {"model", [](auto& d) { d.model = "\xff"; }},
      {"tenant ", [](auto& d) { d.tenant = "\xc0\x80"; }},
      {"tenant_salt", [](auto& d) { d.tenant_salt = "short"; }},
      {"layer_count", [](auto& d) { d.layer_count = 0; }},
      {"layer_begin", [](auto& d) { d.layer_begin = 1; }},
      {"layer_begin", [](auto& d) { d.layer_begin = std::numeric_limits<uint32_t>::max(); }},
      {"kv_head_count", [](auto& d) { d.kv_head_count = 0; }},
      {"kv_head_total", [](auto& d) { d.kv_head_total = 2; }},
      {"block_tokens", [](auto& d) { d.block_tokens = 0; }},
      {"block_bytes", [](auto& d) { d.block_bytes = 0; }},
      {"block_bytes", [](auto& d) { d.block_bytes += 1; }},
      {"block_bytes", [](auto& d) { d.block_bytes = kMaxBlockBytes + 1; }},
      {"k_dim", [](auto& d) { d.k_dim = 0; }},
      {"v_dim",
       [](auto& d) {
         d.element_type = ElementType::kOpaque;
         d.k_dim = 0;
       }},
      {"k_dim", [](auto& d) { d.k_dim = 1 << 20; }},
      // 2^32 x 2^32 heads and tokens wrap a 64-bit product to 0.
      {"block_tokens",
       [](auto& d) {
         d.kv_head_count = d.kv_head_total = 1u << 31;
         d.block_tokens = 1u << 31;
         d.layer_count = d.layer_total = 1;
         d.block_bytes = 1;
       }},
  };
  ASSERT_TRUE(ValidateDescriptor(Valid()).ok()) << ValidateDescriptor(Valid());
  for (const auto& [field, change] : cases) {
    NamespaceDescriptor d = Valid();
    change(d);
    const absl::Status status = ValidateDescriptor(d);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(ToStd(status.message()), HasSubstr(field));
  }
}

}  // namespace
}  // namespace kvarve

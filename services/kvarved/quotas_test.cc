#include "services/kvarved/quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvarve {
namespace {

using ::testing::HasSubstr;

TEST(QuotasTest, ParsesWhatItWrites) {
  const auto parsed = ParseQuota(
      "  host_bytes:4GiB..16GiB entries:..1000000  ingest_bytes_per_second:1MiB.. "
      "connections:2..8 lease_bytes:..1000");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->of(Resource::kHostBytes), (QuotaRange{4ull << 30, 16ull << 30}));
  EXPECT_EQ(parsed->of(Resource::kEntries), (QuotaRange{0, 1'000'000}));
  EXPECT_EQ(parsed->of(Resource::kIngest), (QuotaRange{1 << 20, QuotaRange::kNoCeiling}));
  EXPECT_EQ(parsed->of(Resource::kConnections), (QuotaRange{2, 8}));
  EXPECT_EQ(parsed->of(Resource::kLeaseBytes), (QuotaRange{0, 1000}));
  EXPECT_EQ(QuotaText(*parsed),
            "host_bytes:4GiB..16GiB entries:..1000000 lease_bytes:..1000 "
            "ingest_bytes_per_second:1MiB.. connections:2..8");
  EXPECT_EQ(*ParseQuota(QuotaText(*parsed)), *parsed);
  EXPECT_EQ(*ParseQuota(""), TenantQuota());
  EXPECT_EQ(QuotaText({}), "");
  EXPECT_EQ(ParseQuota("entries:..0")->of(Resource::kEntries).ceiling, 0u);

  const auto named = ParseTenantQuota("a=b=entries:..5");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->first, "a=b");
  EXPECT_EQ(named->second.of(Resource::kEntries).ceiling, 5u);
}

TEST(QuotasTest, Refuses) {
  const auto why = [](std::string_view text) {
    return std::string(ParseQuota(text).status().message());
  };
  EXPECT_THAT(why("bytes:..1"), HasSubstr("known: host_bytes, entries"));
  EXPECT_THAT(why("host_bytes"), HasSubstr("an example"));
  EXPECT_THAT(why("host_bytes:5GiB"), HasSubstr("no range"));
  EXPECT_THAT(why("host_bytes:2GiB..1GiB"), HasSubstr("above the ceiling"));
  EXPECT_THAT(why("device_bytes:1GiB..2GiB"), HasSubstr("a ceiling only"));
  EXPECT_TRUE(ParseQuota("device_bytes:0..2GiB").ok());
  EXPECT_THAT(why("entries:1..x"), HasSubstr("\"x\" is no number"));
  EXPECT_THAT(why("entries:-1.."), HasSubstr("no number"));
  EXPECT_THAT(why("entries:..1 entries:..2"), HasSubstr("twice"));
  EXPECT_FALSE(ParseQuota("host_bytes:1..2..3").ok());
  EXPECT_FALSE(ParseTenantQuota("entries:..5").ok());
  EXPECT_FALSE(ParseTenantQuota("=entries:..5").ok());
  EXPECT_FALSE(ParseTenantQuota("a\n=entries:..5").ok());
}

}  // namespace
}  // namespace kvarve

#include "storage/base/units.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "absl/status/status.h"
#include "storage/base/abseil.h"
#include "storage/base/utf8.h"

namespace kvarve {
namespace {

TEST(UnitsTest, ParsesSizes) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"512B", 512},
      {"64KiB", 65536},
      {"64K", 65536},
      {"1.5GiB", 1610612736},
      {"1.50 GiB", 1610612736},
      {"8G", 8589934592},
      {"0.1KiB", 102},  // 102.4
      {"3TiB", 3298534883328},
      {"9999999999999999999", 9999999999999999999ull},
      {"16777215.999999999T", 18446744073709550516ull},
  };
  for (const auto& [text, bytes] : cases) {
    auto parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(UnitsTest, RefusesWhatIsNoSize) {
  for (const char* text : {"",
                           " ",
                           "K",
                           "-1",
                           "+1",
                           "1.",
                           ".5K",
                           "1.5",
                           "1.5B",
                           "1 ",
                           "1  K",
                           " 1",
                           "64KB",
                           "64kb",
                           "1e3",
                           "16777216T",
                           "18446744073709551616",
                           "99999999999999999999",
                           "1.0000000001K",
                           "0x10",
                           "1K2"}) {
    auto parsed = ParseBytes(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(ToStd(parsed.status().message()).find("64KiB"), std::string_view::npos)
        << "names an example";
  }
}

TEST(UnitsTest, FormatsSizesWithThreeDigits) {
  const std::pair<uint64_t, const char*> cases[] = {
      {0, "0 B"},
      {1023, "1023 B"},
      {1024, "1.00 KiB"},
      {1610612736, "1.50 GiB"},
      {10240, "10.0 KiB"},
      {10229, "9.99 KiB"},
      {10235, "10.0 KiB"},
      {102400, "100 KiB"},
      {1047552, "1023 KiB"},
      {1048575, "1.00 MiB"},
      {18446744073709551615ull, "16.0 EiB"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(FormatBytes(bytes), text);
}

TEST(UnitsTest, DurationsBothWays) {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0},
      {"20ms", 20'000'000},
      {"5s", 5'000'000'000},
      {"1m", 60'000'000'000},
      {"100us", 100'000},
      {"1.5s", 1'500'000'000},
      {"7ns", 7},
      {"2h", 7'200'000'000'000},
      {"999ms", 999'000'000},
  };
  for (const auto& [text, nanos] : cases) {
    auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, nanos);
    EXPECT_EQ(FormatDuration(nanos), text);
  }
  EXPECT_EQ(FormatDuration(-20'000'000), "-20ms");
  EXPECT_EQ(FormatDuration(std::numeric_limits<int64_t>::min()), "-2562048h");
  for (const char* text : {"", "20", "ms", "-5s", "5 sec", "1.5ns", "2562048h", "0x"}) {
    EXPECT_EQ(ParseDuration(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(UnitsTest, HexIsItsOwnInverse) {
  const uint64_t seed = 20261130;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const std::string hex = ToHex({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    EXPECT_EQ(hex.size(), bytes.size() * 2);
    auto back = FromHex(hex);
    ASSERT_TRUE(back.ok()) << seed;
    EXPECT_EQ(*back, bytes);
  }
  const uint8_t known[] = {0x00, 0x1f, 0xA0, 0xff};
  EXPECT_EQ(ToHex(known), "001fa0ff");
  EXPECT_EQ(*FromHex("4B76"), "Kv");
  EXPECT_FALSE(FromHex("abc").ok());
  EXPECT_FALSE(FromHex("zz").ok());
}

TEST(Utf8Test, KnowsTheTableOfWellFormedSequences) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("Qwen3-8B"));
  EXPECT_TRUE(
      IsUtf8("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEF\xBF\xBF \xF0\x90\x80\x80 "
             "\xF4\x8F\xBF\xBF"));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC2",
                          "\xE1\x80", "\xF1\x80\x80", "\xC2\x41", "\xE1\x80\x41"}) {
    EXPECT_FALSE(IsUtf8(bad)) << ToHex(
        {reinterpret_cast<const uint8_t*>(bad), std::string_view(bad).size()});
  }
}

}  // namespace
}  // namespace kvarve

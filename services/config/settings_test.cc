// The table itself, the parsers and the words of their refusals.
#include "services/config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvarve {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(SettingsTest, EveryRowIsCompleteAndInASection) {
  std::set<std::string_view> names;
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(setting.name);
    EXPECT_TRUE(names.insert(setting.name).second);
    EXPECT_FALSE(setting.example.empty());
    EXPECT_TRUE(setting.help.ends_with('.'));
    EXPECT_LE(setting.min, setting.max);
    EXPECT_TRUE(ParseSetting(setting, setting.default_text).ok());
    EXPECT_EQ(setting.type == SettingType::kChoice, !setting.choices.empty());
    EXPECT_EQ(setting.type == SettingType::kBytes || setting.type == SettingType::kCapacity,
              setting.name.ends_with("_bytes") || setting.name.ends_with("_bytes_per_second"));
    const std::string section(setting.name.substr(0, setting.name.find('.')));
    bool found = false;
    for (const SettingSection& known : SettingSections()) found |= known.name == section;
    EXPECT_TRUE(found);
    EXPECT_EQ(FindSetting(setting.name), &setting);
  }
}

TEST(SettingsTest, EverySectionHasARow) {
  for (const SettingSection& section : SettingSections()) {
    bool found = false;
    for (const Setting& setting : Settings())
      found |= setting.name.starts_with(std::string(section.name) + ".");
    EXPECT_TRUE(found) << section.name;
  }
}

TEST(SettingsTest, EnvironmentNamesDiffer) {
  EXPECT_EQ(EnvironmentName(*FindSetting("arena.capacity_bytes")), "KVARVE_ARENA_CAPACITY_BYTES");
  std::set<std::string> names;
  for (const Setting& setting : Settings())
    EXPECT_TRUE(names.insert(EnvironmentName(setting)).second);
}

TEST(ParseTest, Bytes) {
  const Setting& chunk = *FindSetting("arena.chunk_bytes");
  EXPECT_EQ(std::get<uint64_t>(*ParseSetting(chunk, " 64MiB ")), 64u << 20);
  const absl::Status wrong = ParseSetting(chunk, "many").status();
  EXPECT_EQ(Message(wrong),
            "\"many\" is not a size; expected bytes (32.0 MiB to 1.00 GiB), for example 256MiB");
  EXPECT_THAT(Message(ParseSetting(chunk, "31MiB").status()),
              HasSubstr("\"31MiB\" is out of range"));
  EXPECT_THAT(Message(ParseSetting(chunk, "1025MiB").status()), HasSubstr("is out of range"));
}

TEST(ParseTest, CapacityIsAPercentageOrBytes) {
  const Setting& capacity = *FindSetting("arena.capacity_bytes");
  EXPECT_EQ(std::get<Capacity>(*ParseSetting(capacity, "40%")).Of(1000), 400u);
  EXPECT_EQ(std::get<Capacity>(*ParseSetting(capacity, "12.5 %")).Of(1000), 125u);
  EXPECT_EQ(std::get<Capacity>(*ParseSetting(capacity, "1GiB")).Of(1000), 1u << 30);
  EXPECT_TRUE(ParseSetting(capacity, "80%").ok());
  for (const char* text : {"80.1%", "0%", "-5%", "nan%", "0", "", "%", "inf%"}) {
    EXPECT_FALSE(ParseSetting(capacity, text).ok()) << text;
  }
  EXPECT_THAT(Message(ParseSetting(capacity, "90%").status()),
              HasSubstr("\"90%\" is out of range; expected percentage or bytes (up to 80%), for "
                        "example 40% or 64GiB"));
}

TEST(ParseTest, BoolIntChoiceList) {
  const Setting& flag = *FindSetting("arena.prefault");
  EXPECT_TRUE(std::get<bool>(*ParseSetting(flag, "yes")));
  EXPECT_FALSE(std::get<bool>(*ParseSetting(flag, "off")));
  EXPECT_FALSE(ParseSetting(flag, "maybe").ok());

  const Setting& entries = *FindSetting("cache.max_entries");
  EXPECT_EQ(std::get<int64_t>(*ParseSetting(entries, "4096")), 4096);
  for (const char* text : {"4096x", "", "1.5", "99999999999999999999", "-4096", "1023"}) {
    EXPECT_FALSE(ParseSetting(entries, text).ok()) << text;
  }

  const Setting& level = *FindSetting("log.level");
  EXPECT_THAT(Message(ParseSetting(level, "loud").status()),
              HasSubstr("debug, info, warning, error"));

  const Setting& uids = *FindSetting("socket.allow_uids");
  EXPECT_EQ(std::get<std::vector<std::string>>(*ParseSetting(uids, "1, 2,3")),
            (std::vector<std::string>{"1", "2", "3"}));
  EXPECT_TRUE(std::get<std::vector<std::string>>(*ParseSetting(uids, "")).empty());
  EXPECT_FALSE(ParseSetting(uids, "1,,3").ok());
  std::string many = "0";
  for (size_t i = 0; i < kMaxListItems; ++i) many += ",0";
  EXPECT_FALSE(ParseSetting(uids, many).ok());
  EXPECT_FALSE(
      ParseSetting(*FindSetting("socket.path"), std::string(kMaxValueBytes + 1, 'a')).ok());
}

TEST(ParseTest, Addresses) {
  struct Case {
    const char* text;
    const char* shown;
    bool is_loopback;
  };
  const Case good[] = {{"127.0.0.1:9410", "127.0.0.1:9410", true},
                       {"localhost:1", "127.0.0.1:1", true},
                       {"127.8.8.8:0", "127.8.8.8:0", true},
                       {"0.0.0.0:80", "0.0.0.0:80", false},
                       {"[::1]:80", "[::1]:80", true},
                       {"[::]:80", "[::]:80", false},
                       {"10.0.0.1:65535", "10.0.0.1:65535", false},
                       {"off", "off", false},
                       {"", "off", false}};
  for (const Case& test : good) {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(test.text);
    ASSERT_TRUE(address.ok()) << test.text << address.status();
    EXPECT_EQ(address->ToString(), test.shown);
    EXPECT_EQ(address->is_loopback, test.is_loopback) << test.text;
  }
  for (const char* text :
       {"9410", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "[::1]", "[]:80",
        "::1:80", "example.com:80", "127.1:80", ":80", "[127.0.0.1]:80", "127.0.0.1:80x"}) {
    EXPECT_FALSE(ParseListenAddress(text).ok()) << text;
  }
}

TEST(NearestSettingTest, FindsWhatWasMeant) {
  EXPECT_EQ(NearestSetting("arena.capacity_byte"), "arena.capacity_bytes");
  EXPECT_EQ(NearestSetting("arena.capacity"), "arena.capacity_bytes");
  EXPECT_EQ(NearestSetting("capacity_bytes"), "arena.capacity_bytes");
  EXPECT_EQ(NearestSetting("log.levle"), "log.level");
  EXPECT_EQ(NearestSetting("frobnicate"), "");
}

}  // namespace
}  // namespace kvarve

// A snapshot with a different number in every field, read back from the text by a parser of the
// test's own.
#include "services/metrics/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace kvarve {
namespace {

// "name{labels}" -> value.
std::map<std::string, double> Parse(const std::string& text) {
  std::map<std::string, double> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << line;
  }
  return samples;
}

MetricsSnapshot Snapshot() {
  MetricsSnapshot s;
  s.version = "1.2.3";
  s.start_seconds = 1700000000;
  s.cache.lookups = 101;
  s.cache.lookup_keys = 102;
  s.cache.hit_blocks = 103;
  s.cache.miss_blocks = 104;
  s.cache.hit_bytes = 105;
  s.local.granted_bytes = 106;
  s.local.read_bytes = 107;
  for (uint64_t i = 0; i < kPutResults; ++i) s.cache.put_blocks[i] = 110 + i;
  s.cache.put_bytes = 120;
  s.cache.put_conflicts = 121;
  s.cache.arena.capacity_bytes = 9000;
  s.cache.arena.draining_bytes = 122;
  s.cache.arena.wasted_bytes = 123;
  s.cache.pools = {{"team-a", 4096, 1024}, {"b\"\\\n", 100, 100}};
  PoolStats& team = s.cache.pools[0];
  team.share_bytes = 181;
  team.entries = 182;
  team.leased_bytes = 183;
  team.quota.of(Resource::kEntries) = {184, 185};
  team.quota.of(Resource::kConnections) = {0, 186};
  team.lookup_keys = 200;
  team.lookup_hit_keys = 187;
  team.hit_bytes = 188;
  team.stored_bytes = 189;
  team.evicted_blocks = 190;
  team.Refused(Resource::kIngest, 191);
  s.local.sessions_of_tenant = {{"team-a", 192}};
  s.local.requests_of_tenant = {{"team-a", {210, 211, 212, 213, 214}}};
  s.page_bytes = {{"team-a", 2097152}};
  s.cache.evicted_blocks = 124;
  s.cache.reclaimed_blocks = 125;
  s.cache.invalidated_blocks = 126;
  s.cache.corrupt_blocks = 127;
  s.cache.index.entries = 128;
  s.cache.index.doomed = 129;
  s.cache.index.memory_bytes = 130;
  s.cache.policy_bytes = 131;
  s.cache.policy = "hazard";
  s.cache.learning = {.ghosts = 201, .is_trained = true};
  s.cache.refused_blocks = 202;
  s.record = {203, 204, 205};
  s.cache.recompute_preferred_blocks = 206;
  s.cache.saved_recompute_micros = 207'000'000;
  s.cache.namespaces = 132;
  s.cache.leases = 133;
  s.cache.leased_bytes = 134;
  s.cache.quarantined_bytes = 135;
  s.cache.lease_cap_refusals = 136;
  s.cache.releases_unknown = 137;
  s.cache.holds_expired = 138;
  s.local.sessions = 139;
  s.local.ended_sessions = 140;
  s.local.sessions_opened = 141;
  for (size_t i = 0; i < kSessionEnds; ++i) s.local.session_ends[i] = 150 + i;
  for (size_t i = 0; i < kRefusals; ++i) s.local.refusals[i] = 160 + i;
  s.local.malformed = 142;
  s.local.slow_requests = 143;
  s.local.staging_bytes = 144;
  return s;
}

TEST(ExpositionTest, EveryNumberIsInItsPlace) {
  MetricsSnapshot s = Snapshot();
  s.rpc.emplace();
  s.rpc->calls[static_cast<size_t>(RpcMethod::kLookup)][0] = 171;
  s.rpc->calls[static_cast<size_t>(RpcMethod::kStats)][16] = 172;
  s.rpc->auth.failures[0] = 173;
  s.rpc->auth.failures[1] = 174;
  s.rpc->auth.tokens_verified = 175;
  s.rpc->auth.reload_failures = 176;
  s.rpc->slow_calls = 177;
  s.rpc->tls_handshake_failures = 170;
  s.rpc->calls_of_tenant = {{"team-a", {215, 216, 217, 218}}};
  s.rpc->connections.over_quota = 178;
  s.rpc->connections.of_tenants = {{"team-a", 179}};
  const std::map<std::string, double> samples = Parse(ExposeMetrics(s));

  const std::map<std::string, double> expected = {
      {"kvarve_build_info{version=\"1.2.3\"}", 1},
      {"kvarve_start_time_seconds", 1700000000},
      {"kvarve_lookup_requests_total", 101},
      {"kvarve_lookup_keys_total", 102},
      {"kvarve_hit_blocks_total{tier=\"host\"}", 103},
      {"kvarve_miss_blocks_total{reason=\"absent\"}", 104},
      {"kvarve_hit_bytes_total{tier=\"host\"}", 105},
      {"kvarve_get_bytes_total{transport=\"local_map\"}", 106},
      {"kvarve_get_bytes_total{transport=\"local_copy\"}", 107},
      {"kvarve_put_blocks_total{result=\"stored\"}", 110},
      {"kvarve_put_blocks_total{result=\"exists\"}", 111},
      {"kvarve_put_blocks_total{result=\"rejected_no_space\"}", 113},
      {"kvarve_put_blocks_total{result=\"rejected_quota\"}", 116},
      {"kvarve_tenant_bytes{tenant=\"team-a\",tier=\"host\"}", 1024},
      {"kvarve_tenant_entries{tenant=\"team-a\"}", 182},
      {"kvarve_tenant_leased_bytes{tenant=\"team-a\"}", 183},
      {"kvarve_tenant_sessions{tenant=\"team-a\"}", 192},
      {"kvarve_tenant_quota{tenant=\"team-a\",resource=\"entries\",limit=\"floor\"}", 184},
      {"kvarve_tenant_quota{tenant=\"team-a\",resource=\"entries\",limit=\"ceiling\"}", 185},
      {"kvarve_tenant_quota{tenant=\"team-a\",resource=\"connections\",limit=\"ceiling\"}", 186},
      {"kvarve_tenant_quota{tenant=\"team-a\",resource=\"host_bytes\",limit=\"share\"}", 181},
      {"kvarve_tenant_quota_refused_blocks_total{tenant=\"team-a\","
       "resource=\"ingest_bytes_per_second\"}",
       191},
      {"kvarve_tenant_lookup_keys_total{tenant=\"team-a\",result=\"hit\"}", 187},
      {"kvarve_tenant_lookup_keys_total{tenant=\"team-a\",result=\"miss\"}", 13},
      {"kvarve_tenant_hit_bytes_total{tenant=\"team-a\"}", 188},
      {"kvarve_tenant_put_bytes_total{tenant=\"team-a\"}", 189},
      {"kvarve_tenant_evicted_blocks_total{tenant=\"team-a\"}", 190},
      {"kvarve_put_bytes_total", 120},
      {"kvarve_put_conflicts_total", 121},
      {"kvarve_arena_capacity_bytes", 9000},
      {"kvarve_arena_bytes{pool=\"team-a\",state=\"resident\"}", 1024},
      {"kvarve_arena_bytes{pool=\"team-a\",state=\"free\"}", 3072},
      {"kvarve_arena_bytes{pool=\"b\\\"\\\\\\n\",state=\"free\"}", 0},
      {"kvarve_arena_draining_bytes", 122},
      {"kvarve_arena_wasted_bytes", 123},
      {"kvarve_arena_page_size_bytes{pool=\"team-a\"}", 2097152},
      {"kvarve_evicted_blocks_total{tier=\"host\",reason=\"capacity\"}", 124},
      {"kvarve_evicted_blocks_total{tier=\"host\",reason=\"reclaim\"}", 125},
      {"kvarve_evicted_blocks_total{tier=\"host\",reason=\"invalidate\"}", 126},
      {"kvarve_corruption_total{tier=\"host\",cause=\"checksum\"}", 127},
      {"kvarve_index_entries", 128},
      {"kvarve_index_doomed_entries", 129},
      {"kvarve_index_bytes", 130},
      {"kvarve_policy_bytes", 131},
      {"kvarve_policy_info{policy=\"hazard\"}", 1},
      {"kvarve_policy_ghosts", 201},
      {"kvarve_policy_trained", 1},
      {"kvarve_policy_refused_blocks_total", 202},
      {"kvarve_record_accesses_total", 203},
      {"kvarve_recompute_preferred_blocks_total", 206},
      {"kvarve_saved_recompute_seconds_total", 207},
      {"kvarve_record_bytes", 204},
      {"kvarve_record_dropped_accesses_total", 205},
      {"kvarve_namespaces", 132},
      {"kvarve_leases", 133},
      {"kvarve_leased_bytes", 134},
      {"kvarve_lease_quarantine_bytes", 135},
      {"kvarve_lease_cap_refusals_total", 136},
      {"kvarve_lease_unknown_releases_total", 137},
      {"kvarve_holds_expired_total", 138},
      {"kvarve_sessions", 139},
      {"kvarve_ended_sessions", 140},
      {"kvarve_sessions_opened_total", 141},
      {"kvarve_session_deaths_total{how=\"bye\"}", 150},
      {"kvarve_session_deaths_total{how=\"process_exit\"}", 152},
      {"kvarve_connections_refused_total{reason=\"not_allowed\"}", 160},
      {"kvarve_malformed_messages_total", 142},
      {"kvarve_slow_requests_total", 143},
      {"kvarve_rpc_slow_requests_total", 177},
      {"kvarve_rpc_tls_handshake_failures_total", 170},
      {"kvarve_tenant_requests_total{tenant=\"team-a\",transport=\"local\",result=\"ok\"}", 210},
      {"kvarve_tenant_requests_total{tenant=\"team-a\",transport=\"local\",result=\"failed\"}",
       211},
      {"kvarve_tenant_requests_total{tenant=\"team-a\",transport=\"grpc\",result=\"ok\"}", 215},
      {"kvarve_tenant_requests_total{tenant=\"team-a\",transport=\"grpc\",result=\"failed\"}", 216},
      {"kvarve_tenant_transport_bytes_total{tenant=\"team-a\",transport=\"local_map\",direction="
       "\"get\"}",
       214},
      {"kvarve_tenant_transport_bytes_total{tenant=\"team-a\",transport=\"local_copy\",direction="
       "\"get\"}",
       213},
      {"kvarve_tenant_transport_bytes_total{tenant=\"team-a\",transport=\"local_copy\",direction="
       "\"put\"}",
       212},
      {"kvarve_tenant_transport_bytes_total{tenant=\"team-a\",transport=\"grpc\",direction="
       "\"get\"}",
       217},
      {"kvarve_tenant_transport_bytes_total{tenant=\"team-a\",transport=\"grpc\",direction="
       "\"put\"}",
       218},
      {"kvarve_staging_bytes", 144},
      {"kvarve_rpc_requests_total{method=\"Lookup\",code=\"OK\"}", 171},
      {"kvarve_rpc_requests_total{method=\"Stats\",code=\"UNAUTHENTICATED\"}", 172},
      {"kvarve_auth_failures_total{reason=\"no_token\"}", 173},
      {"kvarve_auth_failures_total{reason=\"wrong_token\"}", 174},
      {"kvarve_auth_tokens_verified_total", 175},
      {"kvarve_rpc_calls_over_quota_total", 178},
      {"kvarve_tenant_rpc_connections{tenant=\"team-a\"}", 179},
      {"kvarve_auth_reloads_total{result=\"failed\"}", 176},
  };
  for (const auto& [name, value] : expected) {
    const auto sample = samples.find(name);
    ASSERT_NE(sample, samples.end()) << name;
    EXPECT_EQ(sample->second, value) << name;
  }
}

TEST(ExpositionTest, LatencyBucketsAreCumulative) {
  Counters counters;
  constexpr size_t kLookup = 5;
  for (const int64_t nanos : {1'000, 4'000, 60'000, 2'000'000'000})
    counters.Request(kLookup, true, nanos);
  MetricsSnapshot s = Snapshot();
  counters.CopyTo(&s.local);
  const std::map<std::string, double> samples = Parse(ExposeMetrics(s));
  const std::string name = "kvarve_local_request_seconds";
  EXPECT_EQ(samples.at(name + "_bucket{type=\"lookup\",le=\"5e-06\"}"), 2);
  EXPECT_EQ(samples.at(name + "_bucket{type=\"lookup\",le=\"5e-05\"}"), 2);
  EXPECT_EQ(samples.at(name + "_bucket{type=\"lookup\",le=\"0.0001\"}"), 3);
  EXPECT_EQ(samples.at(name + "_bucket{type=\"lookup\",le=\"1\"}"), 3);
  EXPECT_EQ(samples.at(name + "_bucket{type=\"lookup\",le=\"+Inf\"}"), 4);
  EXPECT_EQ(samples.at(name + "_count{type=\"lookup\"}"), 4);
  EXPECT_NEAR(samples.at(name + "_sum{type=\"lookup\"}"), 2.000065, 1e-6);
  EXPECT_EQ(samples.at("kvarve_local_requests_total{type=\"lookup\",result=\"ok\"}"), 4);
}

TEST(ExpositionTest, RpcMetricsAreAbsentWhenItIsOff) {
  EXPECT_EQ(ExposeMetrics(Snapshot()).find("kvarve_rpc_"), std::string::npos);
}

// Names and help follow the format: every family has HELP and TYPE, counters end in _total.
TEST(ExpositionTest, FollowsTheConventions) {
  std::istringstream lines(ExposeMetrics(Snapshot()));
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, std::regex("# TYPE (\\S+) (counter|gauge|histogram)")))
      continue;
    const std::string name = match[1];
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(std::regex_match(name, std::regex("kvarve_[a-z_]+"))) << name;
    EXPECT_EQ(match[2] == "counter", name.ends_with("_total")) << name;
  }
  EXPECT_GT(names.size(), 30u);
}

TEST(MetricsMarkdownTest, TheCommittedPageIsWhatTheTableSays) {
  std::ifstream file("docs/metrics.md");
  ASSERT_TRUE(file) << "run from the repository's root";
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), MetricsMarkdown()) << "kvarved --print-metrics > docs/metrics.md";
}

TEST(MetricsMarkdownTest, NamesEveryFamilyThatIsServed) {
  MetricsSnapshot s = Snapshot();
  s.rpc.emplace().connections.of_tenants = {{"team-a", 1}};
  s.cache.devices.emplace();
  DeviceStats& device = s.cache.devices->devices.emplace_back();
  device.path = "/dev/nvme0n1";
  device.io.of[0][0].requests = 1;
  std::istringstream lines(ExposeMetrics(s));
  const std::string page = MetricsMarkdown();
  size_t served = 0, listed = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const std::string name = line.substr(7, line.find(' ', 7) - 7);
    EXPECT_NE(page.find("| `" + name + "` |"), std::string::npos) << name;
    ++served;
  }
  for (size_t at = page.find("| `"); at != std::string::npos; at = page.find("| `", at + 1))
    ++listed;
  EXPECT_EQ(served, listed);
}

TEST(DeviceMetricsTest, SayWhatTheTierHasAndDid) {
  MetricsSnapshot s = Snapshot();
  EXPECT_EQ(ExposeMetrics(s).find("kvarve_nvme"), std::string::npos);
  DeviceTierStats& tier = s.cache.devices.emplace();
  tier.dirty_bytes = 4096;
  tier.given_up_blocks[static_cast<size_t>(GivenUp::kFull)] = 3;
  tier.not_admitted_blocks[static_cast<size_t>(NotAdmitted::kParent)] = 5;
  DeviceStats& device = tier.devices.emplace_back();
  device.path = "/dev/nvme0n1";
  device.state = DeviceState::kWriteOff;
  device.io.of[static_cast<int>(IoClass::kFlush)][static_cast<int>(IoOp::kWrite)] = {7, 8192, 0, 0};
  const std::string text = ExposeMetrics(s);
  for (const char* line :
       {"kvarve_nvme_dirty_bytes 4096\n", "kvarve_nvme_given_up_blocks_total{reason=\"full\"} 3\n",
        "kvarve_nvme_admit_dropped_total{reason=\"parent\"} 5\n",
        "kvarve_nvme_device_state{device=\"/dev/nvme0n1\",state=\"write_off\"} 1\n",
        "kvarve_nvme_io_bytes_total{device=\"/dev/nvme0n1\",class=\"flush\",op=\"write\"} "
        "8192\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace kvarve

// Administration over a real cache: each op, and everything that a request can get wrong.
#include "services/kvarved/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "storage/base/units.h"
#include "storage/io/open_device.h"
#include "storage/segment/device_format.h"
#include "storage/testing/block_generator.h"
#include "storage/testing/opaque_namespace.h"

namespace kvarve {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr uint64_t kBlockBytes = 1 << 20;

class AdminTest : public ::testing::Test {
 protected:
  AdminTest() {
    options_.version = "1.2.3";
    options_.cache.arena.capacity_bytes = 4 * kExtentBytes;
    options_.cache.arena.chunk_bytes = kExtentBytes;
    options_.cache.arena.huge_pages = false;
    options_.cache.arena.prefault = false;
    cache_ = *Cache::Create(options_.cache);
    options_.metrics = *ParseListenAddress("127.0.0.1:0");
    live_.metrics_port = 1234;
    live_.local.sessions = 3;
    live_.local.requests[5].ok = 4;
    live_.local.requests[5].total_micros = 80;
    MakeAdmin();
  }
  void MakeAdmin() {
    admin_ = std::make_unique<Admin>(
        &options_, cache_.get(), [this] { return live_; },
        [this](bool draining) {
          drains_ = draining;
          return uint64_t{3};
        });
  }
  NamespaceInfo Open(std::string model, std::string tenant = "team") {
    NamespaceDescriptor d = OpaqueNamespace(std::move(model), kBlockBytes);
    d.tenant = std::move(tenant);
    return *cache_->OpenNamespace(d);
  }
  void Put(const NamespaceInfo& ns, size_t blocks) {
    const std::vector<BlockKey> keys = testing::KeyChain(ns.handle, blocks);
    const std::vector<std::byte> block(kBlockBytes, std::byte{1});
    const std::vector<const std::byte*> sources(blocks, block.data());
    PutRequest request;
    request.ns = ns.handle;
    request.keys = keys;
    request.sources = sources;
    std::vector<PutResult> results(blocks);
    ASSERT_TRUE(cache_->Put(request, results).ok());
  }
  Json Do(const Json& request) {
    const absl::StatusOr<std::string> answer = admin_->Handle(request.dump(), 0);
    EXPECT_TRUE(answer.ok()) << request << answer.status();
    return answer.ok() ? Json::parse(*answer) : Json();
  }
  absl::Status Error(std::string_view text) { return admin_->Handle(text, 0).status(); }

  DaemonOptions options_;
  LiveState live_;
  std::unique_ptr<Catalogue> catalogue_ = NewMemoryCatalogue();
  bool drains_ = false;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Admin> admin_;
};

TEST_F(AdminTest, TenantsAndQuotas) {
  const NamespaceInfo ns = Open("m");
  Put(ns, 3);
  Json tenants = Do({{"op", "tenants"}});
  EXPECT_EQ(tenants["total"], 1);
  EXPECT_EQ(tenants["tenants"][0]["tenant"], "team");
  EXPECT_EQ(tenants["tenants"][0]["used_bytes"], 3 * kBlockBytes);
  EXPECT_EQ(tenants["tenants"][0]["entries"], 3);
  EXPECT_EQ(tenants["tenants"][0]["put_bytes"], 3 * kBlockBytes);
  EXPECT_EQ(tenants["tenants"][0]["quota"], "");
  EXPECT_EQ(tenants["tenants"][0]["share_bytes"], 4 * kExtentBytes);
  EXPECT_EQ(Do({{"op", "tenants"}, {"offset", 1}})["tenants"].size(), 0);

  const Json set = Do({{"op", "quota"}, {"tenant", "team"}, {"quota", "entries:..4"}});
  EXPECT_EQ(set["quota"], "entries:..4");
  Put(Open("another"), 6);
  tenants = Do({{"op", "tenants"}});
  EXPECT_EQ(tenants["tenants"][0]["entries"], 4);
  EXPECT_EQ(tenants["tenants"][0]["quota"], "entries:..4");
  EXPECT_EQ(tenants["tenants"][0]["quota_refused_blocks"]["entries"], 2);

  EXPECT_THAT(std::string(Error(R"({"op":"quota","tenant":"t"})").message()), HasSubstr("texts"));
  EXPECT_THAT(std::string(Error(R"({"op":"quota","tenant":"t","quota":"x:.."})").message()),
              HasSubstr("no resource"));
  EXPECT_THAT(std::string(Error(R"({"op":"quota","tenant":"","quota":""})").message()),
              HasSubstr("name"));
  EXPECT_THAT(
      std::string(Error(R"({"op":"quota","tenant":"t","quota":"host_bytes:9GiB.."})").message()),
      HasSubstr("add up to"));
  EXPECT_THAT(
      std::string(Error(R"({"op":"quota","tenant":"t","quota":"connections:..1"})").message()),
      HasSubstr("tenant.quotas"));
}

// A capacity below what is read in place: what is over it is told, and goes with the lease.
TEST_F(AdminTest, WhatAShrinkHasNotGotBackYet) {
  const NamespaceInfo ns = Open("m");
  Put(ns, 50);
  LeaseAccount account;
  const auto lease =
      cache_->Acquire(ns.handle, testing::KeyChain(ns.handle, 40), &account, 0).lease;
  ASSERT_NE(lease, 0u);
  Do({{"op", "resize"}, {"capacity", kExtentBytes}});
  Json status = Do({{"op", "status"}});
  EXPECT_GT(status["used_bytes"], status["capacity_bytes"]);
  EXPECT_EQ(status["leaving_bytes"], kExtentBytes);
  cache_->ReleaseAll(&account);
  status = Do({{"op", "status"}});
  EXPECT_LE(status["used_bytes"], kExtentBytes);
  EXPECT_EQ(status["leaving_bytes"], 0);
}

TEST_F(AdminTest, DrainEvictAndConfiguration) {
  options_.config_yaml = "a: 1\n";
  EXPECT_EQ(Do({{"op", "config"}})["yaml"], "a: 1\n");
  EXPECT_EQ(Do({{"op", "drain"}, {"on", true}})["open_streams"], 3);
  EXPECT_TRUE(drains_);
  Do({{"op", "drain"}, {"on", false}});
  EXPECT_FALSE(drains_);
  EXPECT_THAT(std::string(Error(R"({"op":"drain"})").message()), HasSubstr("true or false"));
  Put(Open("m"), 5);
  Json evicted = Do({{"op", "evict"}, {"bytes", 2 * kBlockBytes}, {"tenant", "team"}});
  EXPECT_EQ(evicted["evicted_blocks"], 2);
  EXPECT_EQ(evicted["evicted_bytes"], 2 * kBlockBytes);
  EXPECT_EQ(Do({{"op", "evict"}, {"bytes", "1GiB"}, {"tenant", "none"}})["evicted_blocks"], 0);
  EXPECT_EQ(Do({{"op", "evict"}, {"bytes", "1GiB"}})["evicted_blocks"], 3);
  EXPECT_THAT(std::string(Error(R"({"op":"evict"})").message()), HasSubstr("bytes"));
  EXPECT_THAT(std::string(Error(R"({"op":"evict","bytes":"much"})").message()), HasSubstr("much"));
  EXPECT_THAT(std::string(Error(R"({"op":"evict","bytes":-1})").message()), HasSubstr("2GiB"));
}

TEST_F(AdminTest, StatusAndStats) {
  Put(Open("m"), 3);
  const Json status = Do({{"op", "status"}});
  EXPECT_EQ(status["version"], "1.2.3");
  EXPECT_EQ(status["capacity_bytes"], 4 * kExtentBytes);
  EXPECT_EQ(status["used_bytes"], 3 * kBlockBytes);
  EXPECT_EQ(status["blocks"], 3);
  EXPECT_EQ(status["sessions"], 3);
  EXPECT_EQ(status["namespaces"], 1);
  EXPECT_EQ(status["metrics"], "127.0.0.1:1234");
  EXPECT_EQ(status["rpc"], "off");
  EXPECT_EQ(status["limits"]["sessions_per_uid"], options_.local.max_sessions_per_uid);
  EXPECT_EQ(status["limits"]["staging_total_bytes"], options_.local.staging_bytes_total);
  const Json stats = Do({{"op", "stats"}});
  EXPECT_EQ(stats["put_blocks"]["stored"], 3);
  EXPECT_EQ(stats["put_bytes"], 3 * kBlockBytes);
  EXPECT_EQ(stats["requests"]["lookup"]["ok"], 4);
  EXPECT_EQ(stats["requests"]["lookup"]["mean_us"], 20);
  EXPECT_FALSE(stats["requests"].contains("put"));
}

TEST_F(AdminTest, NamespacesComeInPages) {
  std::vector<std::string> ids;
  for (size_t i = 0; i < kNamespacesPerAnswer + 10; ++i)
    ids.push_back(ToHex(Open("m" + std::to_string(i)).id.bytes));
  const Json first = Do({{"op", "namespaces"}});
  EXPECT_EQ(first["total"], ids.size());
  ASSERT_EQ(first["namespaces"].size(), kNamespacesPerAnswer);
  EXPECT_EQ(first["namespaces"][0]["ns"], ids[0]);
  EXPECT_EQ(first["namespaces"][0]["tenant"], "team");
  EXPECT_EQ(first["namespaces"][0]["block_bytes"], kBlockBytes);
  const Json rest = Do({{"op", "namespaces"}, {"offset", kNamespacesPerAnswer}});
  ASSERT_EQ(rest["namespaces"].size(), 10u);
  EXPECT_EQ(rest["namespaces"][9]["ns"], ids.back());
  EXPECT_EQ(Do({{"op", "namespaces"}, {"offset", 1u << 30}})["namespaces"].size(), 0u);
}

// Names of control characters take six bytes each in JSON.
TEST_F(AdminTest, LongNamesMakeShorterPages) {
  for (int i = 0; i < 40; ++i) Open(std::string(1000, '\x01') + std::to_string(i));
  size_t seen = 0, pages = 0;
  while (seen < 40 && pages < 40) {
    const Json page = Do({{"op", "namespaces"}, {"offset", seen}});
    EXPECT_LE(page.dump().size(), kNamespaceBytesPerAnswer + 1000);
    ASSERT_GT(page["namespaces"].size(), 0u);
    seen += page["namespaces"].size();
    ++pages;
  }
  EXPECT_EQ(seen, 40u);
  EXPECT_GT(pages, 1u);
}

TEST_F(AdminTest, ResizeBothWays) {
  Put(Open("m"), 100);
  Json answer = Do({{"op", "resize"}, {"capacity", "64MiB"}});
  EXPECT_EQ(answer["before_bytes"], 4 * kExtentBytes);
  EXPECT_EQ(answer["capacity_bytes"], 2 * kExtentBytes);
  EXPECT_LE(cache_->Stats().arena.used_bytes, 2 * kExtentBytes);
  answer = Do({{"op", "resize"}, {"capacity", 5 * kExtentBytes + 17}});
  EXPECT_EQ(answer["capacity_bytes"], 5 * kExtentBytes);
  EXPECT_EQ(cache_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(Error(R"({"op": "resize", "capacity": "900TiB"})").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Error(R"({"op": "resize", "capacity": 4096})").code(),
            absl::StatusCode::kInvalidArgument);
}

// Of a tenant everything goes, in both tiers and of namespaces that nobody has opened; of others
// nothing.
TEST_F(AdminTest, EraseByTenantOrNamespaceReachesDevices) {
  const std::string path = ::testing::TempDir() + "kvarve_admin_erase";
  FormatOptions format;
  format.bytes = 256 << 20;
  format.segment_bytes = 16 << 20;
  format.force = true;
  format.overwrite = false;
  ASSERT_TRUE(FormatDevice(path, format).ok());
  const auto start = [&] {
    options_.cache.devices.catalogue = catalogue_.get();
    cache_ = *Cache::Create(options_.cache);
    ASSERT_TRUE(cache_->AddDevice(*OpenDevice(path, {})).ok());
    MakeAdmin();
    ASSERT_TRUE(cache_->WaitDevices(60'000'000'000));
  };
  start();
  const NamespaceInfo a = Open("a"), b = Open("b"), other = Open("a", "others");
  for (const NamespaceInfo& ns : {a, b, other}) Put(ns, 3);
  ASSERT_TRUE(cache_->WaitDevices(60'000'000'000));
  const auto blocks = [this](const std::string& model, const std::string& tenant, uint64_t chain) {
    return cache_->Lookup(Open(model, tenant).handle, testing::KeyChain(chain, 3));
  };
  EXPECT_EQ(Do({{"op", "status"}})["nvme"]["recovered"], true);
  EXPECT_EQ(Do({{"op", "erase"}, {"ns", ToHex(a.id.bytes)}})["removed_blocks"], 3);
  EXPECT_EQ(blocks("a", "team", a.handle), 0u);
  EXPECT_EQ(blocks("b", "team", b.handle), 3u);
  start();
  Json answer = Do({{"op", "erase"}, {"tenant", "team"}});  // nobody has opened it
  EXPECT_EQ(answer["removed_blocks"], 3);
  EXPECT_EQ(answer["namespaces_of_unknown_tenant"], 0);
  start();
  EXPECT_EQ(blocks("a", "team", a.handle), 0u);
  EXPECT_EQ(blocks("b", "team", b.handle), 0u);
  EXPECT_EQ(blocks("a", "others", other.handle), 3u);
  EXPECT_EQ(Error(R"({"op": "erase", "tenant": "nobody"})").code(), absl::StatusCode::kNotFound);
  // Without the catalogue nobody knows whose it is.
  cache_.reset();
  catalogue_ = NewMemoryCatalogue();
  start();
  const absl::Status status = Error(R"({"op": "erase", "tenant": "others"})");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("of 1 on devices"));
  EXPECT_EQ(Do({{"op", "invalidate"}, {"all", true}})["removed_blocks"], 3);
  start();
  EXPECT_EQ(blocks("a", "others", other.handle), 0u);
  cache_.reset();
  std::filesystem::remove(path);
}

TEST_F(AdminTest, InvalidateByNamespaceModelOrAll) {
  const NamespaceInfo a = Open("a"), b = Open("b"), c = Open("c");
  for (const NamespaceInfo& ns : {a, b, c}) Put(ns, 2 + ns.handle);
  Json answer = Do({{"op", "invalidate"}, {"ns", ToHex(a.id.bytes)}});
  EXPECT_EQ(answer["removed_blocks"], 2 + a.handle);
  answer = Do({{"op", "invalidate"}, {"model", "b"}});
  EXPECT_EQ(answer["namespaces"], 1);
  EXPECT_EQ(answer["removed_blocks"], 2 + b.handle);
  answer = Do({{"op", "invalidate"}, {"all", true}});
  EXPECT_EQ(answer["namespaces"], 3);
  EXPECT_EQ(answer["removed_blocks"], 2 + c.handle);
  EXPECT_EQ(Error(R"({"op": "invalidate", "model": "none"})").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Error(R"({"op": "invalidate", "ns": "00112233445566778899aabbccddeeff"})").code(),
            absl::StatusCode::kNotFound);
}

TEST_F(AdminTest, WrongRequestsAreNamed) {
  struct Case {
    const char* request;
    const char* says;
  };
  const Case cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{", "not a JSON object"},
      {"{}", "\"op\" is missing"},
      {R"({"op": 3})", "\"op\" is missing"},
      {R"({"op": "fly"})", "unknown op \"fly\"; known: status"},
      {R"({"op": "status", "x": 1})", "unknown field \"x\""},
      {R"({"op": "namespaces", "offset": -1})", "\"offset\""},
      {R"({"op": "resize"})", "\"capacity\" is missing"},
      {R"({"op": "resize", "capacity": -5})", "\"capacity\" must be"},
      {R"({"op": "resize", "capacity": "lots"})", "\"lots\""},
      {R"({"op": "resize", "capacity": "90%"})", "out of range"},
      {R"({"op": "invalidate"})", "exactly one"},
      {R"({"op": "invalidate", "all": true, "model": "m"})", "exactly one"},
      {R"({"op": "invalidate", "all": false})", "must be true"},
      {R"({"op": "invalidate", "ns": "abc"})", ""},
      {R"({"op": "invalidate", "ns": "abcd"})", "32 hexadecimal"},
      {R"({"op": "invalidate", "ns": 5})", "must be a text"},
      {R"({"op": "invalidate", "model": 5})", "must be a text"},
      {R"({"op": "erase"})", "exactly one"},
      {R"({"op": "erase", "all": true})", "exactly one"},
      {R"({"op": "erase", "ns": "00112233445566778899aabbccddeeff", "tenant": "t"})",
       "exactly one"},
      {R"({"op": "erase", "ns": "abcd"})", "32 hexadecimal"},
      {R"({"op": "erase", "tenant": 7})", "as a text"},
  };
  for (const Case& test : cases) {
    const absl::Status status = Error(test.request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.request;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.says)) << test.request;
  }
  EXPECT_FALSE(admin_->Handle(std::string(100'000, '['), 0).ok());
}

}  // namespace
}  // namespace kvarve

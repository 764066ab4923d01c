// Namespaces come and go: against a naive model of who is forgotten, with as many as there may be,
// with every slot size, and from several threads.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "storage/cache/cache.h"
#include "storage/testing/opaque_namespace.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr uint64_t kBlockBytes = 64 << 10;

NamespaceDescriptor Descriptor(const std::string& tenant, int number,
                               uint64_t block_bytes = kBlockBytes) {
  NamespaceDescriptor d = OpaqueNamespace("model" + std::to_string(number), block_bytes);
  d.tenant = tenant;
  return d;
}

BlockKey KeyOf(uint64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

std::unique_ptr<Cache> MakeCache(uint32_t per_tenant, size_t event_window = 0) {
  CacheOptions options;
  options.arena.capacity_bytes = 256ull << 20;
  options.arena.chunk_bytes = 32ull << 20;
  options.arena.huge_pages = false;
  options.arena.prefault = false;
  options.max_namespaces_per_tenant = per_tenant;
  options.event_window = event_window;
  auto cache = Cache::Create(options);
  KV_CHECK(cache.ok());
  return *std::move(cache);
}

PutResult PutOne(Cache& cache, const NamespaceInfo& ns, uint64_t number) {
  const std::vector<std::byte> block(ns.block_bytes, static_cast<std::byte>(number));
  const std::byte* const source = block.data();
  const BlockKey key = KeyOf(number);
  PutRequest request;
  request.ns = ns.handle;
  request.keys = {&key, 1};
  request.sources = {&source, 1};
  PutResult result = PutResult::kRejectedPolicy;
  EXPECT_TRUE(cache.Put(request, {&result, 1}).ok());
  return result;
}

bool Has(Cache& cache, const NamespaceInfo& ns, uint64_t number) {
  const BlockKey key = KeyOf(number);
  return cache.Lookup(ns.handle, {&key, 1}) == 1;
}

// What the node should know, as lists that are searched from end to end.
class Model {
 public:
  struct Space {
    std::string tenant;
    std::set<uint64_t> blocks;
    uint64_t opens = 0, used = 0;
  };
  explicit Model(size_t per_tenant) : per_tenant_(per_tenant) {}

  // False: refused.
  bool Open(const std::string& tenant, const std::string& name) {
    if (!spaces.contains(name)) {
      size_t count = 0;
      auto oldest = spaces.end();
      for (auto it = spaces.begin(); it != spaces.end(); ++it) {
        const Space& space = it->second;
        if (space.tenant != tenant) continue;
        ++count;
        if (!space.blocks.empty() || space.opens > 0) continue;
        if (oldest == spaces.end() || space.used < oldest->second.used) oldest = it;
      }
      if (count >= per_tenant_ && oldest == spaces.end()) return false;
      if (count >= per_tenant_) spaces.erase(oldest), ++forgotten;
      spaces[name].tenant = tenant;
    }
    Use(name);
    return true;
  }
  void Use(const std::string& name) { spaces.at(name).used = ++uses_; }

  std::map<std::string, Space> spaces;
  size_t forgotten = 0;

 private:
  const size_t per_tenant_;
  uint64_t uses_ = 0;
};

TEST(NamespacesTest, AgreesWithAModelOnWhoIsForgotten) {
  testing::SeededRandom random(3);
  constexpr uint32_t kPerTenant = 4;
  const std::unique_ptr<Cache> cache = MakeCache(kPerTenant, /*event_window=*/64);
  Model model(kPerTenant);
  struct Opened {
    std::string name;
    NamespaceInfo info;
  };
  std::vector<Opened> sessions;
  const auto any = [&](uint64_t count) { return random.Below(count); };
  size_t refused = 0;
  for (int step = 0; step < 4000; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    const uint64_t number = any(6);
    switch (any(8)) {
      case 0:
      case 1:
      case 2: {  // a client opens one, and stays or leaves at once
        const std::string tenant = any(2) == 0 ? "a" : "b";
        const NamespaceDescriptor d = Descriptor(tenant, static_cast<int>(any(10)));
        const auto info = cache->OpenNamespace(d);
        const std::string name = tenant + d.model;
        const bool expected = model.Open(tenant, name);
        ASSERT_EQ(info.ok(), expected) << info.status();
        if (!expected) {
          ASSERT_EQ(info.status().code(), absl::StatusCode::kResourceExhausted);
          ASSERT_NE(info.status().message().find("limits.namespaces_per_tenant"),
                    absl::string_view::npos);
          ++refused;
        } else if (any(3) > 0) {
          ++model.spaces[name].opens;
          sessions.push_back({name, *info});
        }
        break;
      }
      case 3:
      case 4: {  // a client leaves
        if (sessions.empty()) break;
        const size_t i = any(sessions.size());
        --model.spaces[sessions[i].name].opens;
        sessions.erase(sessions.begin() + static_cast<ptrdiff_t>(i));
        break;
      }
      case 5: {
        if (sessions.empty()) break;
        const Opened& one = sessions[any(sessions.size())];
        const bool is_new = model.spaces[one.name].blocks.insert(number).second;
        ASSERT_EQ(PutOne(*cache, one.info, number),
                  is_new ? PutResult::kStored : PutResult::kExists);
        model.Use(one.name);
        break;
      }
      case 6: {
        if (sessions.empty()) break;
        const Opened& one = sessions[any(sessions.size())];
        Model::Space& space = model.spaces[one.name];
        if (any(2) == 0) {
          const BlockKey key = KeyOf(number);
          ASSERT_EQ(cache->InvalidateKeys(one.info.handle, {&key, 1}), space.blocks.erase(number));
        } else {
          ASSERT_EQ(cache->Invalidate(one.info.handle), space.blocks.size());
          space.blocks.clear();
        }
        model.Use(one.name);
        break;
      }
      case 7: {  // an administrator empties what a list names
        const std::vector<NamespaceInfo> all = cache->Namespaces();
        if (all.empty()) break;
        const NamespaceInfo& one = all[any(all.size())];
        const std::string name = one.tenant + one.model;
        ASSERT_EQ(cache->Invalidate(one.handle), model.spaces.at(name).blocks.size());
        model.spaces[name].blocks.clear();
        model.Use(name);
        break;
      }
    }
    std::set<std::string> known;
    const std::vector<NamespaceInfo> all = cache->Namespaces();
    for (const NamespaceInfo& info : all) known.insert(info.tenant + info.model);
    ASSERT_EQ(known.size(), model.spaces.size());
    for (const auto& [name, space] : model.spaces) ASSERT_TRUE(known.contains(name)) << name;
    if (!all.empty() && any(4) == 0) {
      const NamespaceInfo& one = all[any(all.size())];
      const auto found = cache->FindNamespace(one.id);
      ASSERT_TRUE(found.ok());
      ASSERT_EQ(found->handle, one.handle);
      model.Use(one.tenant + one.model);
    }
    // A handle that a client has open names the same blocks as ever.
    if (sessions.empty()) continue;
    const Opened& one = sessions[any(sessions.size())];
    for (uint64_t i = 0; i < 6; ++i) {
      ASSERT_EQ(Has(*cache, one.info, i), model.spaces[one.name].blocks.contains(i));
    }
    model.Use(one.name);
    ASSERT_EQ(cache->CheckInvariants(), absl::OkStatus());
  }
  EXPECT_GT(model.forgotten, 100u);
  EXPECT_GT(refused, 100u);
}

// The handle of what was forgotten names nothing, and never what came in its place.
TEST(NamespacesTest, AForgottenHandleIsNobodys) {
  const std::unique_ptr<Cache> cache = MakeCache(1);
  const NamespaceHandle old = cache->OpenNamespace(Descriptor("a", 1))->handle;
  const NamespaceInfo next = *cache->OpenNamespace(Descriptor("a", 2));
  ASSERT_EQ(PutOne(*cache, next, 7), PutResult::kStored);
  EXPECT_NE(old, next.handle);
  EXPECT_EQ(cache->Invalidate(old), 0u);
  EXPECT_TRUE(Has(*cache, next, 7));
  EXPECT_EQ(cache->FindNamespace(IdOf(DigestOf(Descriptor("a", 1)))).status().code(),
            absl::StatusCode::kNotFound);
}

// Events of a namespace that is gone still say whose they were.
TEST(NamespacesTest, EventsKeepTheirNames) {
  const std::unique_ptr<Cache> cache = MakeCache(1, /*event_window=*/16);
  {
    const NamespaceInfo first = *cache->OpenNamespace(Descriptor("a", 1));
    PutOne(*cache, first, 1);
    cache->Invalidate(first.handle);
  }
  const NamespaceInfo second = *cache->OpenNamespace(Descriptor("a", 2));
  PutOne(*cache, second, 1);
  std::vector<CacheEvent> events;
  ASSERT_TRUE(cache->Events(1, 16, &events).ok());
  std::vector<std::string> models;
  for (const CacheEvent& event : events) models.push_back(event.ns->model);
  EXPECT_EQ(models, (std::vector<std::string>{"model1", "model1", "model2"}));
}

// At the node's limit, tenants far from theirs included; what has blocks or is open stays.
TEST(NamespacesTest, TheNodeForgetsTooWhenItIsFull) {
  const std::unique_ptr<Cache> cache = MakeCache(kMaxNamespaces);
  const NamespaceInfo open = *cache->OpenNamespace(Descriptor("a", 0));
  PutOne(*cache, *cache->OpenNamespace(Descriptor("a", 1)), 1);
  for (int i = 2; i < static_cast<int>(kMaxNamespaces); ++i) {
    ASSERT_TRUE(cache->OpenNamespace(Descriptor("a", i)).ok());
  }
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(cache->OpenNamespace(Descriptor("b", i)).ok());
  const std::vector<NamespaceInfo> all = cache->Namespaces();
  EXPECT_EQ(all.size(), kMaxNamespaces);
  std::set<std::string> known;
  for (const NamespaceInfo& info : all) known.insert(info.tenant + info.model);
  EXPECT_TRUE(known.contains("amodel0"));
  EXPECT_TRUE(known.contains("amodel1"));
  for (int i = 2; i < 102; ++i) {
    EXPECT_FALSE(known.contains("amodel" + std::to_string(i))) << "used least recently";
  }
  EXPECT_TRUE(known.contains("amodel102"));
  EXPECT_TRUE(known.contains("bmodel99"));
  EXPECT_EQ(cache->Stats().namespaces, kMaxNamespaces);
}

// More pairs of tenant and slot size over time than the policy has groups.
TEST(NamespacesTest, SlotSizesComeAndGo) {
  const std::unique_ptr<Cache> cache = MakeCache(1);
  for (int i = 0; i < 6000; ++i) {
    const std::string tenant = "t" + std::to_string(i % 50);
    const NamespaceInfo ns =
        *cache->OpenNamespace(Descriptor(tenant, i, kSlotUnitBytes * (1 + i / 50)));
    if (i % 7 != 0) continue;
    ASSERT_EQ(PutOne(*cache, ns, 1), PutResult::kStored);
    ASSERT_TRUE(Has(*cache, ns, 1));
    cache->Invalidate(ns.handle);
  }
  EXPECT_EQ(cache->CheckInvariants(), absl::OkStatus());
}

TEST(NamespacesTest, ThreadsOpenPutAndLeaveWhileOthersInvalidate) {
  const std::unique_ptr<Cache> cache = MakeCache(3, /*event_window=*/32);
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&cache, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int round = 0; round < 500; ++round) {
        const auto ns = cache->OpenNamespace(Descriptor("a", static_cast<int>(random() % 6)));
        if (!ns.ok()) continue;
        const PutResult result = PutOne(*cache, *ns, t);
        EXPECT_TRUE(result == PutResult::kStored || result == PutResult::kExists ||
                    result == PutResult::kRejectedInvalidated);
        cache->Invalidate(ns->handle);
      }
    });
  }
  for (int round = 0; round < 500; ++round) {
    for (const NamespaceInfo& info : cache->Namespaces()) cache->Invalidate(info.handle);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache->CheckInvariants(), absl::OkStatus());
  EXPECT_LE(cache->Stats().namespaces, 3u);
}

}  // namespace
}  // namespace kvarve

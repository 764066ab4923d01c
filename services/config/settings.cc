#include "services/config/settings.h"

#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1000 * kMillisecond;
constexpr int64_t kHour = 3600 * kSecond;
constexpr auto kKi = static_cast<int64_t>(kKiB);
constexpr auto kMi = static_cast<int64_t>(kMiB);
constexpr auto kGi = static_cast<int64_t>(kGiB);

constexpr SettingSection kSections[] = {
    {"socket", "Same-host socket"},
    {"arena", "Host tier"},
    {"cache", "Cache"},
    {"tenant", "Tenant"},
    {"log", "Logs"},
    {"metrics", "Metrics and health"},
    {"rpc", "gRPC"},
};

constexpr Setting kSettings[] = {
    {"socket.path", SettingType::kString, "/run/kvarve/kvarved.sock", "/run/kvarve/kvarved.sock",
     "Unix socket that engines connect to. Its folder is made with mode 0750 when it is missing; "
     "the socket has mode "
     "0660."},
    {"socket.group", SettingType::kString, "kvarve", "kvarve",
     "Group that owns the socket and whose members may connect, by name or number. A name that "
     "this host does not have "
     "leaves the daemon's own group."},
    {"socket.allow_uids", SettingType::kList, "", "1000,1001",
     "Further users that may connect, by number. The daemon's own user always may."},
    {"socket.allow_gids", SettingType::kList, "", "1000",
     "Further groups whose members may connect, by number."},

    {"arena.capacity_bytes", SettingType::kCapacity, "40%", "40% or 64GiB",
     "Memory for blocks: a percentage of what the host can give at start (the smaller of "
     "MemAvailable and the cgroup's "
     "limit), or bytes. More than 80% of it is refused. `kvarve resize` changes it while the "
     "daemon runs."},
    {"arena.chunk_bytes", SettingType::kBytes, "256MiB", "256MiB",
     "Memory is taken from the host and given back in chunks of this size, a multiple of 32 MiB.",
     32 * kMi, 1 * kGi},
    {"arena.huge_pages", SettingType::kBool, "true", "false",
     "Use reserved 2 MiB pages when there are enough of them, else transparent ones where the host "
     "allows them."},
    {"arena.prefault", SettingType::kBool, "true", "false",
     "Touch the pages of a new chunk in the background, so that the first puts do not pay for it."},

    {"cache.policy", SettingType::kChoice, "lru", "lru",
     "Who leaves when the host tier is full: lru is the least "
     "recently used leaf of a chain.",
     0, 0, "lru"},
    {"cache.max_entries", SettingType::kInt, "67108864", "67108864",
     "Most blocks that the index holds, at up to 96 bytes of memory each.", 1024, 1ll << 31},

    {"tenant.name", SettingType::kString, "default", "team-a",
     "Tenant that this daemon's clients belong to. It is part of every namespace."},
    {"tenant.salt_file", SettingType::kString, "", "/var/lib/kvarve/salt",
     "File (mode 0600) with the tenant's 32 secret bytes, made when it is missing. They are part "
     "of every namespace. "
     "Empty: new random bytes at each start."},

    {"log.level", SettingType::kChoice, "info", "info", "Least severe lines to write.", 0, 0,
     "debug|info|warning|error"},
    {"log.format", SettingType::kChoice, "text", "json", "One line an event, to standard error.", 0,
     0, "text|json"},

    {"metrics.listen", SettingType::kAddress, "127.0.0.1:9410", "127.0.0.1:9410",
     "Address of /metrics, /healthz and /readyz, or off. They need no credentials and show no "
     "keys."},

    {"rpc.listen", SettingType::kAddress, "off", "127.0.0.1:7410",
     "Address of the gRPC server, or off. Loopback only."},
    {"rpc.token_file", SettingType::kString, "", "/etc/kvarve/rpc.token",
     "File (mode 0600, at least 16 characters) whose first line callers send as `authorization: "
     "Bearer ...`. Needed "
     "when rpc.listen is set."},
    {"rpc.max_message_bytes", SettingType::kBytes, "1MiB", "1MiB",
     "Largest request that the gRPC server reads.", 64 * kKi, 16 * kMi},
};

}  // namespace

std::span<const Setting> Settings() { return kSettings; }
std::span<const SettingSection> SettingSections() { return kSections; }

}  // namespace kvarve

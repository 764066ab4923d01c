#include "services/config/settings.h"

#include "storage/base/units.h"

namespace kvarve {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMilli = kSecond / 1000;
constexpr int64_t kHour = 3600 * kSecond;
constexpr int64_t kGreetingMin = 10'000'000'000;  // clients that are quiet say hello every 3 s
constexpr auto kKi = static_cast<int64_t>(kKiB);
constexpr auto kMi = static_cast<int64_t>(kMiB);
constexpr auto kGi = static_cast<int64_t>(kGiB);
constexpr int64_t kMaxBytes = 1ll << 46;  // 64 TiB

constexpr SettingSection kSections[] = {
    {"socket", "Same-host socket"},
    {"arena", "Host tier"},
    {"cache", "Cache"},
    {"record", "Access log"},
    {"nvme", "NVMe tier"},
    {"tenant", "Tenants"},
    {"limits", "Limits of same-host clients"},
    {"log", "Logs"},
    {"metrics", "Metrics and health"},
    {"rpc", "gRPC"},
};

constexpr Setting kSettings[] = {
    {"socket.path", SettingType::kString, "/run/kvarve/kvarved.sock", "/run/kvarve/kvarved.sock",
     "Unix socket that engines connect to, of at most 107 bytes; a relative path is taken from the "
     "folder that the daemon is started in. Its folder is made with mode 0750 when it is missing; "
     "the socket has mode 0660. Both belong to the group kvarve where the host has one."},
    {"socket.allow_uids", SettingType::kList, "", "1000,1001",
     "Users that may connect, by number, besides root and the daemon's own. With neither this nor "
     "socket.allow_gids, "
     "the members of the group kvarve may too."},
    {"socket.allow_gids", SettingType::kList, "", "1000",
     "Groups whose members may connect, by number. They also need the socket's file permissions."},
    {"socket.admin_uids", SettingType::kList, "", "1000",
     "Users that may resize, invalidate and list, by number, besides root and the daemon's own."},
    {"socket.poll", SettingType::kDuration, "50us", "0",
     "How long a session looks for its client's next request before it sleeps; left off while that "
     "does not pay off, and on hosts with one processor. 0: never.",
     0, kMilli},

    {"arena.capacity_bytes", SettingType::kCapacity, "40%", "40% or 64GiB",
     "Memory for blocks: a percentage of what the host can give at start (the smaller of "
     "MemAvailable and the control "
     "group's limit), or bytes. More than 80% of it is refused. `kvarve resize` changes it while "
     "the daemon runs."},
    {"arena.chunk_bytes", SettingType::kBytes, "256MiB", "256MiB",
     "Memory is taken from the host and given back in chunks of this size, a multiple of 32 MiB.",
     32 * kMi, 1 * kGi},
    {"arena.huge_pages", SettingType::kBool, "true", "false",
     "Use reserved 2 MiB pages when there are enough of them, else transparent ones, which are "
     "asked for as pages are touched in the background (arena.prefault; Linux 6.1 or newer, unless "
     "transparent_hugepage/shmem_enabled is deny)."},
    {"arena.prefault", SettingType::kBool, "true", "false",
     "Touch the pages of a new chunk in the background, so that the first puts do not pay for it."},
    {"arena.trust", SettingType::kChoice, "read_only", "read_only",
     "Who may write the arena's memory. read_only: the daemon alone. writable: also every process "
     "that is let onto the socket, so that GPUs that cannot register read-only memory read blocks "
     "in place: only on hosts of one tenant, whose processes are trusted not to write it. "
     "Checksums tell when one did.",
     0, 0, "read_only|writable"},

    {"cache.policy", SettingType::kChoice, "hazard", "lru",
     "Who leaves when the host tier is full, always from the end of a chain. hazard learns which "
     "blocks come back, and keeps what it has learned in the file policy of tenant.state_dir; "
     "without devices it also refuses blocks that are worth less than all that are there. lru: the "
     "least recently used. s3fifo: what came lately and was not asked for again.",
     0, 0, "hazard|lru|s3fifo"},
    {"cache.max_entries", SettingType::kInt, "67108864", "67108864",
     "Most blocks that the index holds, at up to 96 bytes of memory each.", 1024, 1ll << 31},

    {"record.path", SettingType::kString, "", "/var/lib/kvarve/accesses",
     "New file that gets the access log, for `kvarve replay`: which blocks were asked for when, by "
     "salted ids that say nothing of keys or tokens. Empty: nothing is recorded."},
    {"record.max_bytes", SettingType::kBytes, "1GiB", "100MiB",
     "The recording ends when the file has this size, at 8 bytes a block and 32 an access.",
     4 * kKi, kMaxBytes},

    {"nvme.devices", SettingType::kList, "", "/var/lib/kvarve/nvme0",
     "Files or block devices of the NVMe tier, made by `kvarve device format` or as "
     "nvme.device_bytes says. None: blocks are in memory only. Of what only they have a lookup "
     "counts at most limits.lease_total_bytes."},
    {"nvme.device_bytes", SettingType::kBytes, "0", "100GiB",
     "A file of nvme.devices that does not exist is made so large at the start. 0: it must exist.",
     0, kMaxBytes},
    {"nvme.backend", SettingType::kChoice, "auto", "posix",
     "How devices are read and written. auto: io_uring, and threads where that is forbidden.", 0, 0,
     "auto|io_uring|posix"},
    {"nvme.catalogue_dir", SettingType::kString, "", "/var/lib/kvarve/catalogue",
     "Folder of the catalogue, which makes starts faster and keeps what was hot. It may be lost. "
     "Empty: the folder catalogue in tenant.state_dir, or none without that."},
    {"nvme.drive_writes_per_day", SettingType::kString, "1", "0.5",
     "How often a day the devices may be written over; what they are rated for keeps them for "
     "their "
     "rated years. 0: no limit."},
    {"nvme.admission", SettingType::kChoice, "all", "seen_before",
     "What devices are given at most, however little was written of late: all; shallow: the first "
     "64 "
     "blocks of a chain, and what was asked for twice; seen_before: that alone, and a block behind "
     "it; sampled: a quarter of that. What is left of nvme.drive_writes_per_day makes it less.",
     0, 0, "all|shallow|seen_before|sampled"},
    {"nvme.rung", SettingType::kChoice, "raw", "planes",
     "In which form blocks are written to devices; what is there in another one is read all the "
     "same. planes: elements of two and four bytes, by byte planes of which zstd compresses the "
     "highest: a third less on bf16, without loss, for some 2 s of a core a GB written and 0.6 s a "
     "GB read. kvarved of a version that does not know it refuses a device that was used so.",
     0, 0, "raw|planes"},
    {"nvme.dirty_bytes", SettingType::kBytes, "0", "1GiB",
     "Most bytes on their way to devices, which are what a crash may cost; puts beyond it are shed "
     "and tried again. 0: 16 MiB a device, and at most a quarter of arena.capacity_bytes.",
     0, kMaxBytes},
    {"nvme.max_entries", SettingType::kInt, "67108864", "67108864",
     "Most blocks on devices, at up to 97 bytes of memory each, 113 with a rung.", 1024, 1ll << 31},
    {"nvme.stop_timeout", SettingType::kDuration, "20s", "20s",
     "How long a stop may take to write out what only memory has, hottest first.", 0, kHour},
    {"nvme.prefer_recompute", SettingType::kBool, "true", "false",
     "Leave blocks out of the answer to a lookup where the devices would bring them later than the "
     "engine computes them: for clients that tell what a block costs them, as the connector does."},
    {"nvme.scrub_interval", SettingType::kDuration, "1m", "1m",
     "How often an idle device reads one segment to verify it. 0: never.", 0, 24 * kHour},

    {"tenant.default", SettingType::kString, "default", "team-a",
     "Tenant of clients that no rule names. The tenant is part of every namespace: tenants never "
     "see each other's "
     "blocks."},
    {"tenant.rules", SettingType::kList, "", "uid:1000=team-a,gid:2000=team-b",
     "Which clients belong to which tenant; the first rule that fits counts."},
    {"tenant.names", SettingType::kList, "", "team-a,team-b",
     "Further tenants: those that only certificates and tokens of remote clients name. Who names "
     "another than these, tenant.default and those of tenant.rules is refused."},
    {"tenant.quotas", SettingType::kList, "", "team-a=host_bytes:4GiB..16GiB connections:..64",
     "What tenants may have, as TENANT=RESOURCE:FLOOR..CEILING with spaces between several. A "
     "floor "
     "is theirs whenever they want it, a ceiling is never passed, and between them they share what "
     "is idle; either may be left out. Resources: host_bytes (floors are kept in multiples of "
     "arena.chunk_bytes), device_bytes (of the NVMe tier; a ceiling only), entries (blocks), "
     "lease_bytes (read in place at once), ingest_bytes_per_second, connections (to the socket, "
     "and as many to the gRPC server)."},
    {"tenant.default_quota", SettingType::kString, "", "host_bytes:..8GiB",
     "The same for each tenant that tenant.quotas does not name; ceilings only."},
    {"tenant.state_dir", SettingType::kString, "", "/var/lib/kvarve",
     "Folder that keeps the tenants' secret salts (mode 0600) over restarts. Empty: new ones at "
     "each start."},

    {"limits.sessions", SettingType::kInt, "512", "512", "Most clients at once.", 1, 4096},
    {"limits.sessions_per_uid", SettingType::kInt, "32", "64", "Most clients of one user at once.",
     1, 4096},
    {"limits.namespaces_per_tenant", SettingType::kInt, "1024", "1024",
     "Most namespaces of one tenant. The least recently used one that is empty and that no client "
     "has open gives way to a new one.",
     1, 4096},
    {"limits.lease_total_bytes", SettingType::kBytes, "0", "8GiB",
     "Most bytes that all clients read in place at once; beyond it they get copies. A lookup "
     "counts at most so many of what only devices have, as they have to be in memory together. 0: "
     "half of the capacity.",
     0, kMaxBytes},
    {"limits.lease_process_bytes", SettingType::kBytes, "0", "4GiB",
     "The same for one process. 0: a quarter of the capacity.", 0, kMaxBytes},
    {"limits.ingest_bytes_per_second", SettingType::kBytes, "0", "4GiB",
     "Most bytes that all tenants together put a second; their floors are kept free of it. 0: no "
     "limit.",
     0, kMaxBytes},
    {"limits.hold", SettingType::kDuration, "10s", "5s", "Longest hold that a lookup may ask for.",
     0, 60 * kSecond},
    {"limits.staging_session_bytes", SettingType::kBytes, "256MiB", "128MiB",
     "Most memory through which one client puts.", 1 * kMi, 16 * kGi},
    {"limits.staging_process_bytes", SettingType::kBytes, "512MiB", "256MiB",
     "The same for all clients of a process.", 1 * kMi, 64 * kGi},
    {"limits.staging_total_bytes", SettingType::kBytes, "2GiB", "1GiB", "The same for all clients.",
     1 * kMi, 256 * kGi},

    {"log.level", SettingType::kChoice, "info", "info", "Least severe lines to write.", 0, 0,
     "debug|info|warning|error"},
    {"log.format", SettingType::kChoice, "text", "json", "One line an event, to standard error.", 0,
     0, "text|json"},
    {"log.slow_request", SettingType::kDuration, "100ms", "20ms",
     "Requests that take longer are logged; of runs over gRPC the time is the peer's too. 0: none.",
     0, kHour},

    {"metrics.listen", SettingType::kAddress, "127.0.0.1:9410", "127.0.0.1:9410",
     "Address of the status page (/), /metrics, /healthz and /readyz, or off. They need no "
     "credentials and show no keys."},

    {"rpc.listen", SettingType::kAddress, "off", "127.0.0.1:7410",
     "Address of the gRPC server, or off. Without TLS loopback only."},
    {"rpc.tls_certificate_file", SettingType::kString, "", "/etc/kvarve/tls/tls.crt",
     "The server's certificate in PEM, with its chain. With the next two: mutual TLS 1.3; files "
     "that "
     "change are read again (security.md)."},
    {"rpc.tls_key_file", SettingType::kString, "", "/etc/kvarve/tls/tls.key",
     "Its private key in PEM, mode 0600."},
    {"rpc.tls_client_ca_file", SettingType::kString, "", "/etc/kvarve/tls/ca.crt",
     "Authorities in PEM that sign the certificates of callers."},
    {"rpc.trust_domain", SettingType::kString, "", "corp.example",
     "SPIFFE trust domain whose names spiffe://DOMAIN/kvarve/... say who a caller is, besides "
     "kvarve:// names."},
    {"rpc.insecure_plaintext_off_loopback", SettingType::kBool, "false", "true",
     "Listen in plaintext elsewhere than on loopback. Whoever sees the traffic reads prompts and "
     "tokens."},
    {"rpc.token_keys_file", SettingType::kString, "", "/etc/kvarve/token-keys.json",
     "JSON Web Key Set with the public keys of signed tokens (ES256, RS256). Read again when it "
     "changes."},
    {"rpc.revocations_file", SettingType::kString, "", "/etc/kvarve/revoked",
     "List of tokens and certificates that are no longer taken (kvarve token revoke). May be "
     "missing "
     "at first; read again when it changes."},
    {"rpc.token_audience", SettingType::kString, "kvarve", "kvarve",
     "Signed tokens must be for this audience."},
    {"rpc.token_issuer", SettingType::kString, "", "https://issuer.example",
     "Signed tokens must be of this issuer. Empty: of any whose key is in the set."},
    {"rpc.reload_interval", SettingType::kDuration, "1s", "10s",
     "How often the files above are looked at. Certificates: whole seconds.", 100 * kMilli, kHour},
    {"rpc.token_file", SettingType::kString, "", "/etc/kvarve/rpc.token",
     "File (mode 0600, at least 16 characters) whose first line callers send as `authorization: "
     "Bearer TOKEN`: they belong to tenant.default. Without TLS this or "
     "rpc.token_keys_file is needed."},
    {"rpc.max_message_bytes", SettingType::kBytes, "1MiB", "1MiB",
     "Largest request that the gRPC server reads, besides frames of blocks.", 64 * kKi, 16 * kMi},
    {"rpc.max_connections", SettingType::kInt, "4096", "16384",
     "Most TCP connections to the gRPC server. When there are as many, a new one takes the place "
     "of "
     "one on which nobody has shown good credentials yet.",
     1, 65536},
    {"rpc.greeting", SettingType::kDuration, "30s", "60s",
     "A connection to the gRPC server on which nobody has shown good credentials for so long is "
     "closed.",
     kGreetingMin, kHour},
    {"rpc.max_streams", SettingType::kInt, "1024", "256",
     "Most reads, writes and watches of remote clients at once. One tenant has at most eight times "
     "what is left, of this and of rpc.write_bytes.",
     1, 65536},
    {"rpc.read_bytes", SettingType::kBytes, "256MiB", "1GiB",
     "Most bytes of blocks that remote reads keep in place at once; beyond it they are told to ask "
     "again.",
     32 * kMi, kMaxBytes},
    {"rpc.write_bytes", SettingType::kBytes, "256MiB", "1GiB",
     "Most bytes of blocks that remote clients are sending, which lie in the host tier meanwhile, "
     "and of their frames; a quarter of arena.capacity_bytes at most, but at least 32 MiB. Beyond "
     "it "
     "writes are shed and told when to come again.",
     32 * kMi, kMaxBytes},
    {"rpc.pin_bytes", SettingType::kBytes, "0", "8GiB",
     "Most bytes that one tenant's remote clients pin. 0: as limits.lease_total_bytes allows.", 0,
     kMaxBytes},
    {"rpc.max_pin", SettingType::kDuration, "60s", "30s",
     "Longest time that a remote client may pin a block without asking again.", kMilli, kHour},
    {"rpc.stall", SettingType::kDuration, "10s", "30s",
     "A remote client that neither reads a frame of what it asked for (2 MiB at most) nor sends "
     "one of what it announced for so long "
     "loses its stream.",
     100 * kMilli, kHour},
    {"rpc.event_window", SettingType::kInt, "65536", "1048576",
     "Events of blocks stored and removed that the node keeps for watchers, at 64 bytes each. 0: "
     "none.",
     0, 1 << 26},
    {"rpc.admin_socket", SettingType::kString, "", "/run/kvarve/admin.sock",
     "Unix socket of administration over gRPC (drain, resize, evict, configuration), made with "
     "mode 0600. Empty: none."},
    {"rpc.admin_listen", SettingType::kAddress, "off", "0.0.0.0:7411",
     "Where administration over gRPC listens for other hosts: in TLS only (rpc.tls_*), for "
     "certificates of the role admin. \"off\": nowhere."},
};

}  // namespace

std::span<const Setting> Settings() { return kSettings; }
std::span<const SettingSection> SettingSections() { return kSections; }

}  // namespace kvarve

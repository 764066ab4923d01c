// The only file beside forgiving_files that knows RocksDB.
#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/slice.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"
#include "storage/catalogue/catalogue.h"
#include "storage/catalogue/forgiving_files.h"

namespace kvarve {
namespace {

constexpr size_t kDeviceBytes = sizeof(CatalogueDevice);
constexpr off_t kRoomBytes = 1 << 20;  // that a start should find, beside its log

// Device, then the id with its highest byte first: segments of a device are sorted by age.
std::string KeyOf(const CatalogueDevice& device, uint64_t segment_id) {
  std::string key(kDeviceBytes + 8, '\0');
  std::memcpy(key.data(), device.data(), kDeviceBytes);
  for (int i = 0; i < 8; ++i)
    key[kDeviceBytes + i] = static_cast<char>(segment_id >> (56 - 8 * i) & 0xff);
  return key;
}
uint64_t IdOf(const rocksdb::Slice& key) {
  uint64_t id = 0;
  for (int i = 0; i < 8; ++i) id = id << 8 | static_cast<uint8_t>(key[kDeviceBytes + i]);
  return id;
}

rocksdb::Slice SliceOf(std::string_view text) { return {text.data(), text.size()}; }

// RocksDB's own log would be one more file that may fail; what matters of it comes as a status.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

rocksdb::Options Settings() {
  rocksdb::Options options;
  options.info_log = std::make_shared<NoLog>();
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.write_buffer_size = 16 << 20;
  options.max_write_buffer_number = 2;
  options.max_total_wal_size = 32 << 20;
  options.compression = rocksdb::kNoCompression;
  options.max_open_files = 64;
  options.paranoid_checks = true;
  options.max_background_jobs = 2;
  return options;
}

// What RocksDB writes with. Lives longer than the database.
struct Files {
  std::shared_ptr<ForgivingFiles> files = std::make_shared<ForgivingFiles>();
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
  std::string failure() const { return files->failure().text(); }
};

// Not synced: what is lost with the power is made again from the footers.
class RocksCatalogue final : public Catalogue {
 public:
  RocksCatalogue(std::string path, std::unique_ptr<Files> files, rocksdb::DB* db,
                 std::vector<rocksdb::ColumnFamilyHandle*> families)
      : path_(std::move(path)), files_(std::move(files)), db_(db), families_(std::move(families)) {}
  ~RocksCatalogue() override {
    for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
    db_.reset();
    // With holes in it, it is no use to the next start.
    if (!files_->failure().empty()) rocksdb::DestroyDB(path_, Settings()).PermitUncheckedError();
  }

  std::optional<std::string> Get(const CatalogueDevice& device, uint64_t segment_id) override {
    return Read(families_[0], KeyOf(device, segment_id));
  }
  absl::Status Put(const CatalogueDevice& device, uint64_t segment_id,
                   std::string_view value) override {
    return Write(
        [&] { return db_->Put({}, families_[0], KeyOf(device, segment_id), SliceOf(value)); });
  }
  absl::Status Delete(const CatalogueDevice& device, uint64_t segment_id) override {
    return Write([&] { return db_->Delete({}, families_[0], KeyOf(device, segment_id)); });
  }
  std::vector<uint64_t> Segments(const CatalogueDevice& device) override {
    std::vector<uint64_t> ids;
    const std::string first = KeyOf(device, 0);
    const std::string prefix = first.substr(0, kDeviceBytes);
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, families_[0]));
    for (it->Seek(first); it->Valid() && it->key().starts_with(prefix); it->Next()) {
      if (it->key().size() == first.size()) ids.push_back(IdOf(it->key()));
    }
    if (!it->status().ok()) Answer(it->status()).IgnoreError();
    return ids;
  }
  std::optional<std::string> GetMeta(std::string_view name) override {
    return Read(families_[1], std::string(name));
  }
  absl::Status PutMeta(std::string_view name, std::string_view value) override {
    return Write([&] { return db_->Put({}, families_[1], SliceOf(name), SliceOf(value)); });
  }
  uint64_t errors() const override { return errors_.load(std::memory_order_relaxed); }

 private:
  std::optional<std::string> Read(rocksdb::ColumnFamilyHandle* family, const std::string& key) {
    std::string value;
    const rocksdb::Status status = db_->Get({}, family, key, &value);
    if (status.ok()) return value;
    if (!status.IsNotFound()) Answer(status).IgnoreError();
    return std::nullopt;
  }
  absl::Status Answer(const rocksdb::Status& status) {
    if (status.ok()) return absl::OkStatus();
    errors_.fetch_add(1, std::memory_order_relaxed);
    return absl::InternalError("catalogue: " + status.ToString());
  }
  template <typename Change>
  absl::Status Write(Change change) {
    if (files_->failure().empty()) KV_RETURN_IF_ERROR(Answer(change()));
    const std::string failure = files_->failure();
    if (failure.empty()) return absl::OkStatus();
    if (!told_.exchange(true)) {
      KvLog(LogLevel::kWarning, "catalogue cannot be written: the next start makes it anew",
            {{"catalogue", path_}, {"reason", failure}});
    }
    return Answer(rocksdb::Status::IOError(failure));
  }

  const std::string path_;
  const std::unique_ptr<Files> files_;
  std::unique_ptr<rocksdb::DB> db_;
  const std::vector<rocksdb::ColumnFamilyHandle*> families_;
  std::atomic<uint64_t> errors_{0};
  std::atomic<bool> told_{false};
};

// Whether deleting the database and making it anew may help: not when another process has it.
bool IsDamage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsInvalidArgument() || status.IsNotSupported();
}

// So much an open may write: the log of a life that was killed becomes a table.
off_t RoomFor(const std::string& path) {
  off_t bytes = kRoomBytes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    std::error_code unknown;
    const uintmax_t size = entry.path().extension() == ".log" ? entry.file_size(unknown) : 0;
    if (!unknown) bytes += static_cast<off_t>(size);
  }
  return bytes;
}

// A start on a full disk leaves what is there alone. OK, too, where this cannot be told.
absl::Status CheckRoom(const std::string& path) {
  const off_t room = RoomFor(path);
  const std::string name = path + "/room";
  const UniqueFd file(::open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return absl::OkStatus();
  const int error = ::posix_fallocate(file.get(), 0, room);
  ::unlink(name.c_str());
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return absl::OkStatus();
  return absl::InternalError("catalogue " + path + ": " + std::generic_category().message(error));
}

absl::StatusOr<std::unique_ptr<Catalogue>> Open(const std::string& path, bool* damaged) {
  // It names every block: nobody else needs to read it. RocksDB would make it for all to see.
  ::mkdir(path.c_str(), 0700);
  *damaged = false;
  KV_RETURN_IF_ERROR(CheckRoom(path));
  auto files = std::make_unique<Files>();
  rocksdb::DBOptions settings(Settings());
  settings.env = files->env.get();
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions(Settings())},
      {"meta", rocksdb::ColumnFamilyOptions(Settings())}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(settings, path, families, &handles, &db);
  const std::string failure = files->failure();
  std::unique_ptr<Catalogue> catalogue;
  if (status.ok()) {
    catalogue = std::make_unique<RocksCatalogue>(path, std::move(files), db, std::move(handles));
  }
  if (!failure.empty()) return absl::InternalError("catalogue " + path + ": " + failure);
  if (catalogue != nullptr) return catalogue;
  *damaged = IsDamage(status);
  return absl::InternalError("catalogue " + path + ": " + status.ToString());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Catalogue>> OpenRocksCatalogue(const std::string& path) {
  bool damaged = false;
  return Open(path, &damaged);
}

OpenedCatalogue OpenCatalogue(const std::string& path) {
  OpenedCatalogue opened;
  bool damaged = false;
  auto catalogue = Open(path, &damaged);
  if (!catalogue.ok()) {
    opened.reason = std::string(catalogue.status().message());
    if (damaged) {
      KvLog(LogLevel::kWarning, "catalogue is damaged and made anew from the devices",
            {{"reason", opened.reason}});
      rocksdb::DestroyDB(path, Settings()).PermitUncheckedError();
      opened.rebuilt = true;
      catalogue = Open(path, &damaged);
    }
  }
  if (catalogue.ok()) {
    opened.catalogue = *std::move(catalogue);
    return opened;
  }
  opened.reason = std::string(catalogue.status().message());
  opened.memory = true;
  KvLog(LogLevel::kWarning,
        "catalogue cannot be opened: nothing of it is kept until the next start",
        {{"reason", opened.reason}});
  opened.catalogue = NewMemoryCatalogue();
  return opened;
}

}  // namespace kvarve

#include "storage/catalogue/forgiving_files.h"

#include <utility>

namespace kvarve {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

class ForgivingFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  ForgivingFile(ForgivingFiles::File file, std::shared_ptr<ForgivingFiles::Failure> failure)
      : FSWritableFileOwnerWrapper(std::move(file)), failure_(std::move(failure)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return Try([&] { return target()->Append(data, options, debug); });
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    return Try([&] { return target()->Append(data, options, info, debug); });
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    return Try([&] { return target()->Truncate(size, options, debug); });
  }
  IOStatus Flush(const IOOptions& options, IODebugContext* debug) override {
    return Try([&] { return target()->Flush(options, debug); });
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return Try([&] { return target()->Sync(options, debug); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Try([&] { return target()->Fsync(options, debug); });
  }
  IOStatus RangeSync(uint64_t offset, uint64_t bytes, const IOOptions& options,
                     IODebugContext* debug) override {
    return Try([&] { return target()->RangeSync(offset, bytes, options, debug); });
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    return failure_->Forgive(target()->Close(options, debug));
  }

 private:
  template <typename Write>
  IOStatus Try(Write write) {
    return failure_->text().empty() ? failure_->Forgive(write()) : IOStatus::OK();
  }

  const std::shared_ptr<ForgivingFiles::Failure> failure_;
};

}  // namespace

std::string ForgivingFiles::Failure::text() const {
  MutexLock lock(&mutex_);
  return text_;
}

IOStatus ForgivingFiles::Failure::Forgive(const IOStatus& status) {
  if (status.ok()) return status;
  MutexLock lock(&mutex_);
  if (text_.empty()) text_ = status.ToString();
  return IOStatus::OK();
}

IOStatus ForgivingFiles::NewWritableFile(const std::string& name,
                                         const rocksdb::FileOptions& options, File* result,
                                         IODebugContext* debug) {
  const IOStatus status = target()->NewWritableFile(name, options, result, debug);
  if (status.ok()) *result = std::make_unique<ForgivingFile>(std::move(*result), failure_);
  return status;
}

IOStatus ForgivingFiles::ReopenWritableFile(const std::string& name,
                                            const rocksdb::FileOptions& options, File* result,
                                            IODebugContext* debug) {
  const IOStatus status = target()->ReopenWritableFile(name, options, result, debug);
  if (status.ok()) *result = std::make_unique<ForgivingFile>(std::move(*result), failure_);
  return status;
}

IOStatus ForgivingFiles::ReuseWritableFile(const std::string& name, const std::string& old_name,
                                           const rocksdb::FileOptions& options, File* result,
                                           IODebugContext* debug) {
  const IOStatus status = target()->ReuseWritableFile(name, old_name, options, result, debug);
  if (status.ok()) *result = std::make_unique<ForgivingFile>(std::move(*result), failure_);
  return status;
}

}  // namespace kvarve

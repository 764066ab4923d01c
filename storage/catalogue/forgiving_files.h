// Files as RocksDB wants them, which never tell it that a write failed: some of its assertions,
// which Debian's package has in it, end the process when a file whose write failed is written again
// or closed, and a full disk is enough for that. What failed is kept for whoever asks, and nothing
// is written any more from then on.
//
// THREADS: any.  BLOCKS: on the disk.
#ifndef KVARVE_STORAGE_CATALOGUE_FORGIVING_FILES_H_
#define KVARVE_STORAGE_CATALOGUE_FORGIVING_FILES_H_

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

#include "storage/base/mutex.h"

namespace kvarve {

class ForgivingFiles final : public rocksdb::FileSystemWrapper {
 public:
  using File = std::unique_ptr<rocksdb::FSWritableFile>;

  // What failed first, in all files of one database.
  class Failure {
   public:
    std::string text() const;  // empty: nothing did
    // OK, whatever it was.
    rocksdb::IOStatus Forgive(const rocksdb::IOStatus& status);

   private:
    mutable Mutex mutex_;
    std::string text_ ABSL_GUARDED_BY(mutex_);
  };

  ForgivingFiles() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "ForgivingFiles"; }
  const Failure& failure() const { return *failure_; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    File* result, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       File* result, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                                      const rocksdb::FileOptions& options, File* result,
                                      rocksdb::IODebugContext* debug) override;

 private:
  // Files may outlive the database that they were opened by.
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CATALOGUE_FORGIVING_FILES_H_

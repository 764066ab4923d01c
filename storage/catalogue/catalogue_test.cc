#include "storage/catalogue/catalogue.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace kvarve {
namespace {

namespace fs = std::filesystem;
constexpr CatalogueDevice kOne = {1, 2, 3};
constexpr CatalogueDevice kTwo = {1, 2, 4};

class CatalogueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "catalogue_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ + "/catalogue";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_, path_;
};

void FillAndCheck(Catalogue* catalogue) {
  // Ids that differ in every byte's order, and a value with zeros in it.
  for (uint64_t id : {uint64_t{256}, uint64_t{1}, uint64_t{3} << 32, uint64_t{255}}) {
    ASSERT_TRUE(catalogue->Put(kOne, id, std::string(1000, '\0') + std::to_string(id)).ok());
  }
  ASSERT_TRUE(catalogue->Put(kTwo, 7, "other").ok());
  ASSERT_TRUE(catalogue->Delete(kOne, 255).ok());
  ASSERT_TRUE(catalogue->Delete(kOne, 999).ok());
  EXPECT_EQ(catalogue->Segments(kOne), (std::vector<uint64_t>{1, 256, uint64_t{3} << 32}));
  EXPECT_EQ(catalogue->Segments(kTwo), (std::vector<uint64_t>{7}));
  EXPECT_EQ(catalogue->Segments({9}), std::vector<uint64_t>{});
  EXPECT_EQ(catalogue->Get(kOne, 256), std::string(1000, '\0') + "256");
  EXPECT_EQ(catalogue->Get(kOne, 255), std::nullopt);
  EXPECT_EQ(catalogue->Get(kTwo, 1), std::nullopt);
  ASSERT_TRUE(catalogue->PutMeta("budget", "12").ok());
  ASSERT_TRUE(catalogue->PutMeta("budget", "13").ok());
  EXPECT_EQ(catalogue->GetMeta("budget"), "13");
  EXPECT_EQ(catalogue->GetMeta("other"), std::nullopt);
  EXPECT_EQ(catalogue->errors(), 0u);
}

TEST_F(CatalogueTest, InMemory) { FillAndCheck(NewMemoryCatalogue().get()); }

TEST_F(CatalogueTest, SurvivesARestart) {
  {
    auto catalogue = OpenRocksCatalogue(path_);
    ASSERT_TRUE(catalogue.ok()) << catalogue.status();
    FillAndCheck(catalogue->get());
  }
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_all);
  const OpenedCatalogue again = OpenCatalogue(path_);
  EXPECT_FALSE(again.rebuilt || again.memory) << again.reason;
  EXPECT_EQ(again.catalogue->Segments(kOne).size(), 3u);
  EXPECT_EQ(again.catalogue->GetMeta("budget"), "13");
}

TEST_F(CatalogueTest, ALockedOneIsDoneWithout) {
  const OpenedCatalogue first = OpenCatalogue(path_);
  ASSERT_FALSE(first.memory) << first.reason;
  ASSERT_TRUE(first.catalogue->Put(kOne, 1, "x").ok());
  const OpenedCatalogue second = OpenCatalogue(path_);
  EXPECT_TRUE(second.memory);
  EXPECT_FALSE(second.rebuilt);
  EXPECT_FALSE(second.reason.empty());
  FillAndCheck(second.catalogue.get());
  EXPECT_EQ(first.catalogue->Get(kOne, 1), "x");  // untouched
}

TEST_F(CatalogueTest, APlaceThatCannotBeWrittenIsDoneWithout) {
  std::ofstream(path_) << "a file, not a folder";
  const OpenedCatalogue opened = OpenCatalogue(path_);
  EXPECT_TRUE(opened.memory);
  FillAndCheck(opened.catalogue.get());
}

// No file of this process may be longer, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST_F(CatalogueTest, AFullDiskIsDoneWithoutAndCostsNothing) {
  for (const bool exists : {false, true}) {
    if (exists) {
      ASSERT_TRUE(OpenCatalogue(path_).catalogue->Put(kTwo, 1, "kept").ok());
      OpenCatalogue(path_);  // and into a table: a log that is left would keep it from opening
    }
    const FileLimit full(0);
    const OpenedCatalogue opened = OpenCatalogue(path_);
    EXPECT_TRUE(opened.memory);
    EXPECT_FALSE(opened.rebuilt);
    EXPECT_FALSE(opened.reason.empty());
    FillAndCheck(opened.catalogue.get());
  }
  EXPECT_EQ(OpenCatalogue(path_).catalogue->Get(kTwo, 1), "kept");
}

// RocksDB's own assertions must not end the process: neither at the next write nor at the close.
TEST_F(CatalogueTest, ADiskThatGetsFullCostsTheCatalogueAndNothingElse) {
  for (const rlim_t bytes : {0, 1 << 20, 10 << 20}) {
    OpenedCatalogue opened = OpenCatalogue(path_);
    ASSERT_FALSE(opened.memory) << opened.reason;
    ASSERT_TRUE(opened.catalogue->Put(kOne, 1, "early").ok());
    {
      const FileLimit full(bytes);
      uint64_t id = 2;
      while (id < 1000 && opened.catalogue->Put(kOne, id, std::string(100'000, 'v')).ok()) ++id;
      EXPECT_LT(id, 1000u);
      EXPECT_GT(opened.catalogue->errors(), 0u);
      for (; id < 1100; ++id) EXPECT_FALSE(opened.catalogue->Put(kOne, id, "more").ok());
      EXPECT_FALSE(opened.catalogue->PutMeta("budget", "12").ok());
      EXPECT_FALSE(opened.catalogue->Delete(kOne, 1).ok());
      const auto early = opened.catalogue->Get(kOne, 1);
      EXPECT_TRUE(!early.has_value() || *early == "early");
      opened.catalogue.reset();
    }
    const OpenedCatalogue again = OpenCatalogue(path_);
    ASSERT_FALSE(again.memory) << again.reason;
    EXPECT_EQ(again.catalogue->Segments(kOne), std::vector<uint64_t>{});
    EXPECT_TRUE(again.catalogue->Put(kTwo, 1, "works").ok());
  }
}

// Each file of the database in turn is damaged. Whatever RocksDB makes of it, the catalogue opens,
// works, and answers no value that was never put.
TEST_F(CatalogueTest, DamageNeverKeepsItFromOpening) {
  int rebuilt = 0;
  for (int file = 0; file < 12; ++file) {
    fs::remove_all(path_);
    {
      const OpenedCatalogue opened = OpenCatalogue(path_);
      ASSERT_FALSE(opened.memory) << opened.reason;
      ASSERT_TRUE(opened.catalogue->Put(kOne, 5, std::string(100000, 'v')).ok());
    }
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path_)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    const fs::path victim = files[static_cast<size_t>(file) / 2 % files.size()];
    const auto size = static_cast<std::streamoff>(fs::file_size(victim));
    if (file % 2 == 0) {
      fs::resize_file(victim, static_cast<uintmax_t>(size) / 2);
    } else {
      std::fstream stream(victim, std::ios::in | std::ios::out | std::ios::binary);
      for (std::streamoff at = 0; at < size; at += 100) stream.seekp(at).put('!');
    }
    OpenedCatalogue opened = OpenCatalogue(path_);
    rebuilt += opened.rebuilt ? 1 : 0;
    const std::optional<std::string> value = opened.catalogue->Get(kOne, 5);
    EXPECT_TRUE(!value || *value == std::string(100000, 'v')) << victim;
    EXPECT_TRUE(opened.catalogue->Put(kTwo, 1, "works").ok()) << victim;
    EXPECT_EQ(opened.catalogue->Get(kTwo, 1), "works") << victim;
  }
  EXPECT_GT(rebuilt, 0);
}

}  // namespace
}  // namespace kvarve

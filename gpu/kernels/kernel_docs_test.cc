// docs/kernels.md is made from the table: KVARVE_UPDATE=1 build/release/tests/kernel_docs_test
// writes it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gpu/kernels/kernel_table.h"

namespace kvarve {
namespace {

constexpr char kPage[] = "docs/kernels.md";

std::string Markdown() {
  std::ostringstream page;
  page
      << "# Kernels\n\nThis page is made from `gpu/kernels/kernel_table.h`: `KVARVE_UPDATE=1 "
         "build/release/tests/kernel_docs_test`.\nThe host checks each launch and takes the widest "
         "access that all addresses, strides and sizes allow\n(`gpu/kernels/plan.h`); block size, "
         "range of tokens, strides and group size are run-time values.\nThe number at the end of "
         "an attention kernel's name is the longest row that it has room for. What each uses of a\n"
         "processor stands in `gpu/kernels/budget.txt`.\n\n| kernel | bytes an access | bytes of "
         "parameters | does |\n|---|---|---|---|\n";
  for (const KernelInfo& info : kKernels) {
    for (const FamilyInfo& family : kFamilies) {
      if (family.family != info.family) continue;
      page << "| `" << info.name << "` | " << info.vector_bytes << " | " << info.params_bytes
           << " | " << family.what << " |\n";
    }
  }
  return page.str();
}

TEST(KernelDocsTest, ThePageIsTheTable) {
  if (std::getenv("KVARVE_UPDATE") != nullptr) std::ofstream(kPage) << Markdown();
  std::ifstream file(kPage);
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), Markdown()) << "KVARVE_UPDATE=1 build/release/tests/kernel_docs_test";
}

TEST(KernelDocsTest, TheTableIsFoundByFamilyAndWidth) {
  std::set<uint32_t> rows;
  for (const FamilyInfo& family : kFamilies) {
    for (const uint32_t width : {1u, 2u, 4u, 8u, 16u}) {
      for (const uint32_t dim : {0u, 96u, 192u, 576u}) {
        const auto row = FindKernelRow(family.family, width, dim);
        if (row) rows.insert(*row);
      }
    }
  }
  EXPECT_EQ(rows.size(), kKernelCount);
  EXPECT_FALSE(FindKernelRow(KernelFamily::kGatherFp8, 2));
  EXPECT_FALSE(FindKernelRow(KernelFamily::kAttentionFp16, 16, 576));
}

}  // namespace
}  // namespace kvarve

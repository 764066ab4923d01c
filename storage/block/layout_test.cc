#include "storage/block/layout.h"

#include <gtest/gtest.h>

#include "storage/block/golden_testing.h"

namespace kvarve {
namespace {

TEST(LayoutTest, GoldenOffsets) {
  const nlohmann::json golden = ReadGolden("layout.json");
  ASSERT_EQ(golden.size(), 6u);
  for (const auto& entry : golden) {
    SCOPED_TRACE(entry["name"]);
    NamespaceDescriptor descriptor;
    descriptor.element_type = static_cast<ElementType>(entry["element_type"].get<uint32_t>());
    descriptor.layer_count = entry["layers"];
    descriptor.kv_head_count = entry["kv_heads"];
    descriptor.block_tokens = entry["tokens"];
    descriptor.k_dim = entry["k_dim"];
    descriptor.v_dim = entry["v_dim"];
    const BlockLayout layout = BlockLayout::Of(descriptor);
    EXPECT_EQ(layout.BlockBytes(), entry["block_bytes"].get<uint64_t>());
    for (const auto& row : entry["rows"]) {
      EXPECT_EQ(layout.KOffset(row[0], row[1], row[2]), row[3].get<uint64_t>()) << row;
      if (row[4] == -1) {
        EXPECT_EQ(layout.VBytes(), 0u);
      } else {
        EXPECT_EQ(layout.VOffset(row[0], row[1], row[2]), row[4].get<uint64_t>()) << row;
      }
    }
  }
}

}  // namespace
}  // namespace kvarve

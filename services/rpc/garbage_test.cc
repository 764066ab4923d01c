// Goal: whatever a writer sends instead of frames, in whatever pieces, costs its own call and
// nothing else; a block that is stored all the same is the one that protobuf reads in it. Method:
// the messages of good runs, spoiled at random and cut into slices at random, sent to a real
// server; a model that takes them apart with protobuf.
#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "client/rpc/run_stream.h"
#include "services/rpc/rpc_fixture_testing.h"
#include "storage/base/clock.h"
#include "storage/testing/seeded_random.h"

namespace kvarve {
namespace {

constexpr size_t kBlock = 4096, kPayload = 1500, kBlocks = 3;
constexpr int kRuns = 400;

class GarbageTest : public RpcFixture {
 protected:
  using Messages = std::vector<std::string>;

  std::string Bytes(size_t size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random_.Next());
    return bytes;
  }

  Messages GoodRun(const v1::Namespace& ns, const std::string& packed) {
    Messages messages;
    v1::WriteFrame frame;
    *frame.mutable_open() = OpenOf(ns, packed);
    messages.push_back(frame.SerializeAsString());
    for (size_t i = 0; i < kBlocks; ++i) {
      if (i + 1 < kBlocks && random_.OneIn(3)) {
        const size_t together = 2 + random_.Below(kBlocks - i - 1);
        messages.push_back(Together(ns, packed, i, together));
        i += together - 1;
        continue;
      }
      const std::string block = Bytes(kBlock);
      for (size_t at = 0; at < kBlock; at += kPayload) {
        frame.Clear();
        frame.set_index(static_cast<uint32_t>(i));
        frame.set_offset(at);
        frame.set_payload(block.substr(at, kPayload));
        if (at == 0 && random_.OneIn(2)) frame.set_checksum(ChecksumOf(ns, packed, i, block));
        messages.push_back(frame.SerializeAsString());
      }
    }
    return messages;
  }

  std::string Together(const v1::Namespace& ns, const std::string& packed, size_t first,
                       size_t count) {
    v1::WriteFrame frame;
    frame.set_index(static_cast<uint32_t>(first));
    for (size_t i = first; i < first + count; ++i) {
      const std::string block = Bytes(kBlock);
      const uint64_t checksum = ChecksumOf(ns, packed, i, block);
      i == first ? frame.set_checksum(checksum) : frame.add_more_checksums(checksum);
      frame.mutable_payload()->append(block);
    }
    return frame.SerializeAsString();
  }

  void Spoil(Messages* messages) {
    std::string& one = (*messages)[random_.Below(messages->size())];
    const size_t at = random_.Below(one.size() + 1);
    switch (random_.Below(8)) {
      case 0:
      case 1:
        if (!one.empty()) one[at % one.size()] ^= static_cast<char>(1 << random_.Below(8));
        break;
      case 2:
        one.resize(at);
        break;
      case 3:
        one.insert(at, Bytes(1 + random_.Below(20)));
        break;
      case 4:
        one = Bytes(random_.Below(5000));
        break;
      case 5:  // the header, where a byte means most
        if (!one.empty()) one[at % std::min<size_t>(one.size(), 16)] = Bytes(1)[0];
        break;
      case 6:
        std::swap(one, (*messages)[random_.Below(messages->size())]);
        break;
      default:
        messages->insert(
            messages->begin() + static_cast<ptrdiff_t>(random_.Below(messages->size())),
            (*messages)[random_.Below(messages->size())]);
    }
  }

  grpc::ByteBuffer Sliced(const std::string& message) {
    std::vector<grpc::Slice> slices;
    for (size_t at = 0; at < message.size();) {
      const size_t size =
          std::min(1 + random_.Below(random_.OneIn(3) ? 2000 : 9), message.size() - at);
      slices.emplace_back(message.data() + at, size);
      at += size;
    }
    return {slices.data(), slices.size()};
  }

  // The blocks that protobuf sees in them, as far as they come in order.
  static std::vector<std::string> BlocksIn(const Messages& messages) {
    std::vector<std::string> blocks;
    std::string block;
    for (size_t i = 1; i < messages.size() && blocks.size() < kBlocks; ++i) {
      v1::WriteFrame frame;
      if (!frame.ParseFromString(messages[i]) || frame.has_open() ||
          frame.index() != blocks.size() || frame.offset() != block.size()) {
        break;
      }
      block += frame.payload();
      if (block.size() > kBlock * (1 + static_cast<size_t>(frame.more_checksums_size()))) break;
      if (block.size() % kBlock != 0) continue;
      for (size_t at = 0; at < block.size(); at += kBlock)
        blocks.push_back(block.substr(at, kBlock));
      block.clear();
    }
    return blocks;
  }

  testing::SeededRandom random_{std::random_device{}()};
};

TEST_F(GarbageTest, CostsItsOwnCallAndStoresNothingElse) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(kBlock));
  auto shown = std::make_shared<client::ClientFiles::Shown>();
  shown->token = kToken;
  const auto endpoint =
      client::ParseEndpoint("kvarve://127.0.0.1:" + std::to_string(server_->port()));
  ASSERT_TRUE(endpoint.ok());
  const auto link = std::make_shared<client::NodeLink>(*endpoint, "", shown);
  ASSERT_TRUE(
      link->channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60)));
  size_t whole = 0, refused = 0;
  for (int run = 0; run < kRuns; ++run) {
    const std::string packed = Bytes(32 * kBlocks);
    Messages messages = GoodRun(ns, packed);
    const uint64_t spoils = random_.Below(4);
    for (uint64_t i = 0; i < spoils; ++i) Spoil(&messages);
    client::RunStream stream(link, "/kvarve.v1.KvCache/WriteRun",
                             SystemClock::Get()->NowNanos() + 60'000'000'000);
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!stream.Write(Sliced(messages[i]), i + 1 == messages.size())) break;
    }
    grpc::ByteBuffer answer;
    stream.Read(&answer);
    const absl::Status status = stream.Finish();
    EXPECT_TRUE(spoils > 0 || status.ok()) << status;
    refused += status.ok() ? 0 : 1;
    EXPECT_THAT(status.code(),
                ::testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument,
                                 absl::StatusCode::kNotFound))
        << status;
    // What is there under the run's keys is what was sent.
    const std::vector<std::string> sent = BlocksIn(messages);
    const std::vector<std::string> stored = Read(ns, packed).blocks;
    ASSERT_LE(stored.size(), sent.size()) << "run " << run;
    for (size_t i = 0; i < stored.size(); ++i) ASSERT_EQ(stored[i], sent[i]) << "run " << run;
    EXPECT_TRUE(spoils > 0 || stored.size() == kBlocks) << "run " << run;
    whole += stored.size() == kBlocks ? 1 : 0;
  }
  EXPECT_GT(whole, size_t{kRuns / 10});
  EXPECT_GT(refused, size_t{kRuns / 10});
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
  const std::string packed(32, 'h');
  EXPECT_THAT(Write(OpenOf(ns, packed), {std::string(kBlock, 'h')}).results,
              ::testing::ElementsAre(v1::PUT_STORED));
}

}  // namespace
}  // namespace kvarve

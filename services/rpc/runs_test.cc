// ReadRun and WriteRun against an oracle, through protobuf's own parsing and serialising of the
// frames: what may be sent, what comes back, and what a peer that does nothing costs.
#include <gmock/gmock.h>

#include "services/rpc/rpc_fixture_testing.h"

namespace kvarve {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RunsTest : public RpcFixture {};

TEST_F(RunsTest, RandomBlocksComeBack) {
  Start();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const uint64_t sizes[] = {4096, 65536, 100'000, 1 << 20, 9 << 20};  // the last in many frames
  for (const uint64_t size : sizes) {
    NamespaceDescriptor descriptor = TestDescriptor(size);
    descriptor.key_bytes = size == 65536 ? 16 : 32;
    const v1::Namespace ns = Open(descriptor);
    ASSERT_EQ(ns.block_bytes(), size);
    ASSERT_EQ(ns.tenant(), "team");
    const size_t count = 1 + random() % 5;
    const std::string packed = RandomBytes(count * ns.key_bytes(), random);
    std::vector<std::string> blocks;
    for (size_t i = 0; i < count; ++i) blocks.push_back(RandomBytes(size, random));
    // Of any split, checksums in the first frame of each block or in its last.
    const Written written =
        Write(OpenOf(ns, packed), blocks, 1 + random() % (2 << 20), [&](v1::WriteFrame* frame) {
          const size_t i = frame->index();
          const bool is_last = frame->offset() + frame->payload().size() == size;
          if (frame->has_open() || (i % 2 == 0 ? frame->offset() != 0 : !is_last)) return;
          frame->set_checksum(ChecksumOf(ns, packed, i, blocks[i]));
        });
    ASSERT_TRUE(written.status.ok()) << written.status.error_message();
    ASSERT_EQ(written.results.size(), count);
    EXPECT_THAT(written.results, Each(v1::PUT_STORED));

    Got got = Read(ns, packed);
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_TRUE(got.blocks == blocks);
    // A key that is not there ends the run; again, all exist.
    got = Read(ns, packed.substr(0, ns.key_bytes()) + std::string(ns.key_bytes(), 'x') +
                       packed.substr(0, ns.key_bytes()));
    EXPECT_EQ(got.blocks.size(), 1u);
    EXPECT_TRUE(got.status.ok());
    EXPECT_THAT(Write(OpenOf(ns, packed), blocks).results,
                AllOf(SizeIs(count), Each(v1::PUT_EXISTS)));
  }
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().leases == 0; }));
  EXPECT_GT(server_->Stats().read_bytes, 0u);
  // The client has the last status before the server's side of the stream is gone.
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
}

TEST_F(RunsTest, TheChainIsLinked) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  const std::string a(32, 'a'), b(32, 'b'), block(4096, 'z');
  EXPECT_THAT(Write(OpenOf(ns, a), {block}).results, ElementsAre(v1::PUT_STORED));
  v1::WriteRunOpen open = OpenOf(ns, b);
  open.set_parent(a);
  open.set_first_depth(1);
  EXPECT_THAT(Write(open, {block}).results, ElementsAre(v1::PUT_STORED));
  EXPECT_EQ(cache_->Evict(1, "").first, 1u);  // the leaf goes first
  EXPECT_EQ(Read(ns, a + b).blocks.size(), 1u);
}

TEST_F(RunsTest, WhatAWriteMayNotSay) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(8192));
  const std::string keys(32 * 2, 'k'), block(8192, 'z');
  const v1::WriteRunOpen open = OpenOf(ns, keys);
  const auto refusal = [&](const std::vector<std::string>& blocks, size_t payload,
                           const std::function<void(v1::WriteFrame*)>& spoil) {
    const grpc::Status status = Write(open, blocks, payload, spoil).status;
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  };
  EXPECT_THAT(refusal({block}, 8192, [](v1::WriteFrame* f) { f->clear_open(); }),
              HasSubstr("opening"));
  EXPECT_THAT(refusal({block}, 8192,
                      [&](v1::WriteFrame* f) {
                        if (f->payload().empty()) f->set_payload("x");
                      }),
              HasSubstr("opening"));
  EXPECT_THAT(refusal({block}, 8192, [&](v1::WriteFrame* f) { *f->mutable_open() = open; }),
              HasSubstr("second opening"));
  EXPECT_THAT(refusal({block}, 8192, [](v1::WriteFrame* f) { f->set_index(1); }),
              HasSubstr("comes next"));
  EXPECT_THAT(refusal({block}, 8192,
                      [](v1::WriteFrame* f) {
                        if (!f->has_open()) f->set_offset(1);
                      }),
              HasSubstr("comes next"));
  EXPECT_THAT(refusal({block + "x"}, 9000, nullptr), HasSubstr("8193 bytes"));
  EXPECT_THAT(refusal({block}, 8192,
                      [](v1::WriteFrame* f) {
                        if (!f->has_open()) f->clear_payload();
                      }),
              HasSubstr("0 bytes"));
  EXPECT_THAT(refusal({block.substr(1)}, 8192, nullptr), HasSubstr("inside a block"));
  EXPECT_THAT(refusal({}, 8192, nullptr), HasSubstr("without one"));
  EXPECT_THAT(refusal({block}, 8192,
                      [](v1::WriteFrame* f) {
                        if (f->has_open()) f->mutable_open()->mutable_keys()->clear_packed();
                      }),
              HasSubstr("no blocks"));
  EXPECT_THAT(refusal({block}, 8192,
                      [](v1::WriteFrame* f) {
                        if (f->has_open()) f->mutable_open()->set_parent("short");
                      }),
              HasSubstr("a key of 5 bytes"));
  EXPECT_THAT(refusal({block}, 8192,
                      [](v1::WriteFrame* f) {
                        if (f->has_open()) f->mutable_open()->set_first_depth(kMaxDepth);
                      }),
              HasSubstr("depth"));
  v1::WriteRunOpen unknown = open;
  unknown.set_ns_id(std::string(16, 'n'));
  EXPECT_EQ(Write(unknown, {block}).status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Read(ns, keys.substr(0, 32)).blocks.size(), 0u);  // nothing of all that was stored
  EXPECT_EQ(cache_->Stats().index.entries, 0u);
}

TEST_F(RunsTest, SmallBlocksShareAFrameWhereTheReaderTakesIt) {
  Start();
  std::mt19937_64 random(5);
  for (const size_t size : {4096, 64 << 10, 100'000, 700'000, 3 << 20}) {
    const v1::Namespace ns = Open(TestDescriptor(size));
    const size_t count = size < 700'000 ? 100 : 5;
    const std::string packed = RandomBytes(32 * count, random);
    std::vector<std::string> blocks;
    for (size_t i = 0; i < count; ++i) blocks.push_back(RandomBytes(size, random));
    ASSERT_THAT(Write(OpenOf(ns, packed), blocks).results, Each(v1::PUT_STORED));
    for (const size_t most : {0, 1, 7, 1000}) {
      grpc::ClientContext context;
      Prepare(&context);
      v1::ReadRunRequest request;
      request.set_ns_id(ns.ns_id());
      request.mutable_keys()->set_key_bytes(32);
      request.mutable_keys()->set_packed(packed);
      request.set_max_blocks_per_frame(static_cast<uint32_t>(most));
      const auto reader = stub_->ReadRun(&context, request);
      const size_t fit = std::max<size_t>((2 << 20) / size, 1);
      const size_t together = std::min({std::max<size_t>(most, 1), fit, size_t{64}});
      std::string bytes;
      size_t next = 0, fullest = 0;
      v1::BlockFrame frame;
      while (reader->Read(&frame)) {
        const auto more = static_cast<size_t>(frame.more_checksums_size());
        fullest = std::max(fullest, more + 1);
        EXPECT_EQ(frame.index(), next);
        // The first comes soon.
        EXPECT_TRUE(!bytes.empty() || frame.payload().size() <= 256u << 10);
        EXPECT_EQ(frame.checksum(), ChecksumOf(ns, packed, next, blocks[next]));
        for (size_t i = 0; i < more; ++i) {
          EXPECT_EQ(frame.more_checksums(static_cast<int>(i)),
                    ChecksumOf(ns, packed, next + 1 + i, blocks[next + 1 + i]));
        }
        if (more > 0) {
          EXPECT_EQ(frame.offset(), 0u);
          EXPECT_EQ(frame.payload().size(), (more + 1) * size);
        }
        bytes += frame.payload();
        next = bytes.size() / size;
      }
      EXPECT_TRUE(reader->Finish().ok());
      EXPECT_EQ(fullest, together) << size << " " << most;
      std::string all;
      for (const std::string& block : blocks) all += block;
      EXPECT_TRUE(bytes == all) << size << " " << most;
    }
    store_->Invalidate(store_->Namespaces().back().handle);
  }
}

// Frames of several blocks: as if each had come in its own, to the first that is refused.
TEST_F(RunsTest, SmallBlocksShareAWrittenFrame) {
  Start();
  std::mt19937_64 random(6);
  const size_t size = 16 << 10, count = 21;
  const v1::Namespace ns = Open(TestDescriptor(size));
  const std::string packed = RandomBytes(32 * count, random);
  std::vector<std::string> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(RandomBytes(size, random));
  // Frames of so many blocks; what `spoil` does to them.
  const auto write = [&](std::vector<size_t> groups, auto spoil) {
    std::vector<std::string> frames;
    std::vector<size_t> firsts;
    for (size_t at = 0; const size_t group : groups) {
      firsts.push_back(at);
      frames.emplace_back();
      for (size_t end = at + group; at < end; ++at) frames.back() += blocks[at];
    }
    return Write(OpenOf(ns, packed), frames, 1 << 20, [&](v1::WriteFrame* frame) {
      if (frame->has_open()) return;
      const size_t n = frame->index(), first = firsts[n];
      frame->set_index(static_cast<uint32_t>(first));
      frame->set_checksum(ChecksumOf(ns, packed, first, blocks[first]));
      for (size_t i = first + 1; i < first + groups[n]; ++i) {
        frame->add_more_checksums(ChecksumOf(ns, packed, i, blocks[i]));
      }
      spoil(n, frame);
    });
  };
  const auto nothing = [](size_t, v1::WriteFrame*) {};
  EXPECT_THAT(Write(OpenOf(ns, packed.substr(0, 32 * 2)), {blocks[0], blocks[1]}).results,
              ElementsAre(v1::PUT_STORED, v1::PUT_STORED));
  std::vector<v1::PutResult> results = write({16, 1, 4}, nothing).results;
  ASSERT_EQ(results.size(), count);
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(results[i], i < 2 ? v1::PUT_EXISTS : v1::PUT_STORED);
  }
  EXPECT_TRUE(Read(ns, packed).blocks == blocks);
  EXPECT_THAT(write({1, 16, 4}, nothing).results, AllOf(SizeIs(count), Each(v1::PUT_EXISTS)));

  store_->Invalidate(store_->Namespaces()[0].handle);
  results = write({3, 16, 2}, [](size_t n, v1::WriteFrame* frame) {
              if (n == 1) frame->set_more_checksums(4, 12345);
            }).results;
  ASSERT_EQ(results.size(), count);
  for (size_t i = 0; i < count; ++i) {  // blocks 0 to 2, 3 to 18: the sixth of the second frame
    EXPECT_EQ(results[i], i < 8    ? v1::PUT_STORED
                          : i == 8 ? v1::PUT_REJECTED_CHECKSUM
                                   : v1::PUT_REJECTED_PARENT);
  }
  EXPECT_EQ(Read(ns, packed).blocks.size(), 8u);

  store_->Invalidate(store_->Namespaces()[0].handle);
  const auto refused = [&](std::vector<size_t> groups, auto spoil) {
    const grpc::Status status = write(std::move(groups), spoil).status;
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("a checksum each"));
  };
  refused({17, 4}, nothing);  // 272 KiB
  refused({4}, [](size_t, v1::WriteFrame* frame) { frame->clear_checksum(); });
  refused({4}, [](size_t, v1::WriteFrame* frame) { frame->add_more_checksums(1); });
  refused({4}, [](size_t, v1::WriteFrame* frame) { frame->mutable_payload()->pop_back(); });
  refused({16, 4, 1}, [](size_t n, v1::WriteFrame* frame) {  // more than there are keys left
    if (n == 2) frame->add_more_checksums(1);
    if (n == 2) frame->mutable_payload()->resize(2 * size);
  });
  EXPECT_EQ(cache_->Stats().leases, 0u);
}

TEST_F(RunsTest, AWrongChecksumStoresNothing) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  const std::string packed = std::string(32, 'a') + std::string(32, 'b') + std::string(32, 'c');
  for (const uint64_t at : {0u, 3000u}) {  // in a block's first frame, in its last
    store_->Invalidate(store_->Namespaces()[0].handle);
    const Written written =
        Write(OpenOf(ns, packed), std::vector<std::string>(3, std::string(4096, 'z')), 1000 + at,
              [&](v1::WriteFrame* frame) {
                const bool is_here = at == 0 ? frame->offset() == 0 : frame->offset() >= at;
                if (!frame->has_open() && frame->index() == 1 && is_here)
                  frame->set_checksum(12345);
              });
    EXPECT_THAT(written.results,
                ElementsAre(v1::PUT_STORED, v1::PUT_REJECTED_CHECKSUM, v1::PUT_REJECTED_PARENT));
    EXPECT_EQ(Read(ns, packed).blocks.size(), 1u);
  }
}

// A write that goes on after it was answered must not break anything.
TEST_F(RunsTest, NoSpaceAnswersEarly) {
  cache_options_.arena.capacity_bytes = 32ull << 20;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(1 << 20));
  std::mt19937_64 random(1);
  const std::string packed = RandomBytes(32 * 40, random);
  LeaseAccount account;
  const NamespaceInfo info = store_->Namespaces()[0];
  // All there is, leased.
  EXPECT_THAT(Write(OpenOf(ns, packed.substr(0, 32 * 16)),
                    std::vector<std::string>(16, std::string(1 << 20, 'a')))
                  .results,
              Each(v1::PUT_STORED));
  account.exempt = true;
  std::vector<BlockKey> keys(16);
  for (size_t i = 0; i < keys.size(); ++i)
    std::memcpy(keys[i].bytes.data(), packed.data() + 32 * i, 32);
  const AcquireResult held = cache_->Acquire(info.handle, keys, &account, 0);
  ASSERT_EQ(held.grants.size(), 16u);
  EXPECT_THAT(Write(OpenOf(ns, packed.substr(32 * 16)),
                    std::vector<std::string>(24, std::string(1 << 20, 'b')))
                  .results.front(),
              v1::PUT_STORED);
  std::vector<BlockKey> more(24);
  for (size_t i = 0; i < more.size(); ++i)
    std::memcpy(more[i].bytes.data(), packed.data() + 32 * (16 + i), 32);
  const AcquireResult rest = cache_->Acquire(info.handle, more, &account, 0);
  ASSERT_EQ(rest.grants.size(), 16u);
  const Written full = Write(OpenOf(ns, RandomBytes(32 * 24, random)),
                             std::vector<std::string>(24, std::string(1 << 20, 'c')));
  ASSERT_TRUE(full.status.ok()) << full.status.error_message();
  ASSERT_EQ(full.results.size(), 24u);
  EXPECT_EQ(full.results[0], v1::PUT_REJECTED_NO_SPACE);
  EXPECT_EQ(full.results[23], v1::PUT_REJECTED_PARENT);
  EXPECT_GT(full.retry_after_ms, 0u);
  // Of a block in many frames the first one is enough.
  // A stream is counted when the server's side of it is gone.
  const auto all_ended = [&] { return server_->Stats().streams.open == 0; };
  ASSERT_TRUE(Eventually(all_ended));
  const uint64_t before = server_->Stats().write_bytes;
  const Written many = Write(OpenOf(ns, RandomBytes(32 * 24, random)),
                             std::vector<std::string>(24, std::string(1 << 20, 'c')), 4096);
  ASSERT_TRUE(many.status.ok()) << many.status.error_message();
  EXPECT_EQ(many.results[0], v1::PUT_REJECTED_NO_SPACE);
  ASSERT_TRUE(Eventually(all_ended));
  EXPECT_EQ(server_->Stats().write_bytes - before, 4096u);
  cache_->ReleaseAll(&account);
}

TEST_F(RunsTest, WritesBeyondTheBudgetAreShed) {
  options_.streams.write_bytes = 3 << 20;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(1 << 20));
  // One write under way has two of the three MiB.
  grpc::ClientContext context;
  Prepare(&context);
  v1::WriteRunReply reply;
  const auto first = stub_->WriteRun(&context, &reply);
  v1::WriteFrame frame;
  *frame.mutable_open() = OpenOf(ns, std::string(32, 'a'));
  ASSERT_TRUE(first->Write(frame));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.write_bytes == 2 << 20; }));
  const Written second = Write(OpenOf(ns, std::string(64, 'b')), {std::string(1 << 20, 'b')});
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_THAT(second.results, ElementsAre(v1::PUT_SHED, v1::PUT_SHED));
  EXPECT_GT(second.retry_after_ms, 0u);
  EXPECT_EQ(server_->Stats().streams.shed, 1u);
  frame.Clear();
  frame.set_payload(std::string(1 << 20, 'a'));
  ASSERT_TRUE(first->Write(frame));
  first->WritesDone();
  ASSERT_TRUE(first->Finish().ok());
  EXPECT_EQ(reply.results(0), v1::PUT_STORED);
  ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
  EXPECT_THAT(Write(OpenOf(ns, std::string(32, 'b')), {std::string(1 << 20, 'b')}).results,
              ElementsAre(v1::PUT_STORED));
}

TEST_F(RunsTest, ReadsBeyondTheCapAreToldToAskAgain) {
  store_options_.read_bytes_max = 8192;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(16384));
  ASSERT_THAT(Write(OpenOf(ns, std::string(32, 'a')), {std::string(16384, 'a')}).results,
              ElementsAre(v1::PUT_STORED));
  const Got got = Read(ns, std::string(32, 'a'));
  EXPECT_EQ(got.status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(got.retry_after, "50");
}

// What was asked for and is not read: the stream ends, and the blocks are free again.
TEST_F(RunsTest, AStreamThatNeverReadsIsGivenUp) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4 << 20));
  std::mt19937_64 random(2);
  const std::string packed = RandomBytes(32 * 16, random);
  ASSERT_THAT(
      Write(OpenOf(ns, packed), std::vector<std::string>(16, std::string(4 << 20, 'a')), 2 << 20)
          .results,
      Each(v1::PUT_STORED));
  options_.streams.stall_nanos = 300'000'000;  // too little for what was written, on a busy machine
  Serve();
  grpc::ClientContext context;
  Prepare(&context, 600);
  v1::ReadRunRequest request;
  request.set_ns_id(ns.ns_id());
  request.mutable_keys()->set_key_bytes(32);
  request.mutable_keys()->set_packed(packed);
  const auto reader = stub_->ReadRun(&context, request);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.stalled == 1; }));
  EXPECT_TRUE(Eventually(
      [&] { return server_->Stats().streams.open == 0 && cache_->Stats().leased_bytes == 0; }));
  v1::BlockFrame frame;
  while (reader->Read(&frame)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

TEST_F(RunsTest, AStreamThatNeverWritesIsGivenUp) {
  options_.streams.stall_nanos = 3'000'000'000;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(1 << 20));
  grpc::ClientContext context;
  Prepare(&context, 600);
  v1::WriteRunReply reply;
  const auto writer = stub_->WriteRun(&context, &reply);
  v1::WriteFrame frame;
  *frame.mutable_open() = OpenOf(ns, std::string(32, 'a'));
  ASSERT_TRUE(writer->Write(frame));
  frame.Clear();
  frame.set_payload(std::string(1000, 'a'));
  ASSERT_TRUE(writer->Write(frame));  // of the block, whose place is taken from here on
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().arena.used_bytes == 1 << 20; }));
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.stalled == 1; }));
  EXPECT_EQ(writer->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return cache_->Stats().arena.used_bytes == 0; }));
}

TEST_F(RunsTest, LimitsOfARun) {
  options_.streams.streams = 1;
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  EXPECT_EQ(Read(ns, std::string(32 * 1025, 'a')).status.error_code(), grpc::INVALID_ARGUMENT);
  grpc::ClientContext context;
  Prepare(&context);
  v1::WriteRunReply reply;
  const auto writer = stub_->WriteRun(&context, &reply);
  v1::WriteFrame frame;
  *frame.mutable_open() = OpenOf(ns, std::string(32, 'a'));
  ASSERT_TRUE(writer->Write(frame));
  ASSERT_TRUE(Eventually([&] { return server_->Stats().streams.open == 1; }));
  EXPECT_EQ(Read(ns, std::string(32, 'a')).status.error_code(), grpc::RESOURCE_EXHAUSTED);
  context.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().streams.open == 0; }));
}

TEST_F(RunsTest, RunsNeedATokenAndADeadline) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  v1::BlockFrame frame;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    EXPECT_EQ(stub_->ReadRun(&context, {})->Finish().error_code(), grpc::UNAUTHENTICATED);
  }
  {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    v1::WriteRunReply reply;
    EXPECT_EQ(stub_->WriteRun(&context, &reply)->Finish().error_code(), grpc::INVALID_ARGUMENT);
  }
}

TEST_F(RunsTest, DrainingTakesNoBlocksAndGivesThem) {
  Start();
  const v1::Namespace ns = Open(TestDescriptor(4096));
  const std::string a(32, 'a'), block(4096, 'a');
  ASSERT_THAT(Write(OpenOf(ns, a), {block}).results, ElementsAre(v1::PUT_STORED));
  EXPECT_TRUE(Eventually([&] { return server_->SetDraining(true) == 0; }));
  EXPECT_EQ(Write(OpenOf(ns, std::string(32, 'b')), {block}).status.error_code(),
            grpc::UNAVAILABLE);
  EXPECT_EQ(Read(ns, a).blocks.size(), 1u);
  server_->SetDraining(false);
  EXPECT_THAT(Write(OpenOf(ns, std::string(32, 'b')), {block}).results,
              ElementsAre(v1::PUT_STORED));
}

}  // namespace
}  // namespace kvarve

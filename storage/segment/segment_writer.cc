#include "storage/segment/segment_writer.h"

#include <algorithm>
#include <utility>

#include "storage/base/status_macros.h"

namespace kvarve {

SegmentWriter::SegmentWriter(const Place& place, const SegmentHeader& header, Written written)
    : place_(place), header_(header), written_(std::move(written)), header_page_(kUnit) {
  SegmentFacts& facts = table_.facts;
  facts.uuid = header_.uuid;
  facts.segment_id = header_.segment_id;
  facts.generation = header_.generation;
  facts.slot = header_.slot;
  facts.stream = header_.stream;
  facts.opened_at = header_.opened_at;
}

SegmentWriter::~SegmentWriter() { KV_CHECK(ios() == 0); }

absl::Status SegmentWriter::Open() {
  const std::span<std::byte, kUnit> page(header_page_.data(), kUnit);
  last_crc_ = EncodeSegmentHeader(header_, place_.key, page);
  if (place_.bug == PlantedBug::kFramesBeforeHeader) {
    SubmitIo(IoOp::kWrite, place_.offset, {{page.data(), page.size()}}, nullptr);
    return absl::OkStatus();
  }
  KV_RETURN_IF_ERROR(WriteNow(place_.device, IoClass::kFlush, place_.offset, page));
  const AlignedBuffer no_trailer(kUnit);
  KV_RETURN_IF_ERROR(WriteNow(place_.device, IoClass::kFlush,
                              place_.offset + place_.segment_bytes - kUnit, no_trailer.span()));
  return SyncNow(place_.device, IoClass::kFlush);
}

void SegmentWriter::OpenAhead() {
  const std::span<std::byte, kUnit> page(header_page_.data(), kUnit);
  last_crc_ = EncodeSegmentHeader(header_, place_.key, page);
  no_trailer_ = AlignedBuffer(kUnit);
  const auto synced = [this](bool ok) {
    MutexLock lock(&place_.gate->mutex);
    is_open_ = ok;
  };
  const auto sync = [this, synced](bool ok) {
    if (ok) SubmitIo(IoOp::kSync, 0, {}, synced);
  };
  const auto write_no_trailer = [this, sync](bool ok) {
    if (!ok) return;
    SubmitIo(IoOp::kWrite, place_.offset + place_.segment_bytes - kUnit,
             {{no_trailer_.data(), no_trailer_.size()}}, sync);
  };
  SubmitIo(IoOp::kWrite, place_.offset, {{page.data(), page.size()}}, write_no_trailer);
}

bool SegmentWriter::is_open() const {
  MutexLock lock(&place_.gate->mutex);
  return is_open_;
}

size_t SegmentWriter::Fitting(std::span<const AppendBlock> blocks) const {
  const uint64_t pages = place_.segment_bytes / kUnit;
  std::vector<NamespaceId> in_frame;
  size_t new_namespaces = 0;
  uint64_t payload_pages = 0;
  size_t count = 0;
  for (const AppendBlock& block : blocks) {
    if (count == kFrameBlocks) break;
    if (std::find(in_frame.rbegin(), in_frame.rend(), block.ns) == in_frame.rend()) {
      if (in_frame.size() == kMaxFrameNamespaces) break;
      in_frame.push_back(block.ns);
      new_namespaces += planned_namespaces_.contains(block.ns) ? 0 : 1;
    }
    const uint64_t payload = payload_pages + block.record.pages();
    if (count > 0 && payload * kUnit > kFramePayloadBytes) break;
    const size_t namespaces = planned_namespaces_.size() + new_namespaces;
    const uint64_t records = planned_records_ + count + 1;
    const uint64_t end = next_page_ + DescriptorPages(in_frame.size(), count + 1) + payload +
                         TablePages(namespaces, records) + 1;
    if (end > pages || namespaces > kMaxSegmentNamespaces) break;
    payload_pages = payload;
    ++count;
  }
  return count;
}

Frame SegmentWriter::BuildFrame(std::vector<AppendBlock>* blocks) {
  Frame frame;
  for (AppendBlock& block : *blocks) {
    size_t ref = frame.namespaces.size();
    while (ref > 0 && frame.namespaces[ref - 1] != block.ns) --ref;
    if (ref == 0) {
      frame.namespaces.push_back(block.ns);
      ref = frame.namespaces.size();
    }
    block.record.ns_ref = static_cast<uint16_t>(ref - 1);
    planned_namespaces_.try_emplace(block.ns, static_cast<uint16_t>(0));
  }
  frame.head.segment_id = header_.segment_id;
  frame.head.generation = header_.generation;
  frame.head.frame_no = next_frame_++;
  frame.head.prev_crc = last_crc_;
  frame.head.descriptor_pages =
      static_cast<uint32_t>(DescriptorPages(frame.namespaces.size(), blocks->size()));
  uint64_t page = next_page_ + frame.head.descriptor_pages;
  for (AppendBlock& block : *blocks) {
    block.record.off4k = block.record.is_erase() ? 0 : static_cast<uint32_t>(page);
    page += block.record.pages();
    frame.records.push_back(block.record);
  }
  frame.head.payload_pages = static_cast<uint32_t>(page - next_page_ - frame.head.descriptor_pages);
  planned_records_ += blocks->size();
  return frame;
}

void SegmentWriter::Submit(std::span<const AppendBlock> blocks, int tries) {
  FrameInFlight building;
  building.blocks.assign(blocks.begin(), blocks.end());
  building.tries = tries;
  building.frame = BuildFrame(&building.blocks);
  Frame& frame = building.frame;
  building.descriptor = AlignedBuffer(frame.head.descriptor_pages * kUnit);
  frame.crc = EncodeFrame(frame, place_.key, building.descriptor.span());
  last_crc_ = frame.crc;
  std::vector<iovec> buffers = {{building.descriptor.data(), building.descriptor.size()}};
  for (const AppendBlock& block : building.blocks) {
    if (block.record.is_erase()) continue;
    auto* data = const_cast<std::byte*>(block.data);
    iovec& last = buffers.back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
      last.iov_len += block.record.pages() * kUnit;
    } else {
      buffers.push_back({data, block.record.pages() * kUnit});
    }
  }
  const uint64_t offset = place_.offset + next_page_ * kUnit;
  next_page_ += frame.head.descriptor_pages + frame.head.payload_pages;
  FrameInFlight* frame_in_flight = nullptr;
  {
    MutexLock lock(&place_.gate->mutex);
    frames_.push_back(std::move(building));
    frame_in_flight = &frames_.back();
  }
  SubmitIo(IoOp::kWrite, offset, std::move(buffers),
           [this, frame_in_flight](bool ok) { OnFrame(frame_in_flight, ok); });
}

// `done` runs without the lock; the request counts as under way until it has returned.
void SegmentWriter::SubmitIo(IoOp op, uint64_t offset, std::vector<iovec> buffers,
                             std::function<void(bool ok)> done) {
  {
    MutexLock lock(&place_.gate->mutex);
    ++ios_;
  }
  IoRequest request{op, IoClass::kFlush, offset, std::move(buffers), nullptr};
  IoGate* gate = place_.gate;
  request.done = [this, gate, done = std::move(done)](const IoResult& result) {
    if (done) done(result.status.ok());
    MutexLock lock(&gate->mutex);
    --ios_;
    gate->changed.notify_all();
  };
  place_.device->Submit(std::move(request));
}

void SegmentWriter::OnFrame(FrameInFlight* frame, bool ok) {
  std::vector<FrameInFlight> complete;
  {
    MutexLock lock(&place_.gate->mutex);
    frame->state = ok ? FrameState::kDone : FrameState::kFailed;
    if (!ok && place_.bug == PlantedBug::kSealOverFailedFrame) frame->state = FrameState::kDone;
    while (!broken_ && !frames_.empty() && frames_.front().state != FrameState::kWriting) {
      if (frames_.front().state == FrameState::kFailed) {
        broken_ = true;
        break;
      }
      AddToTable(frames_.front());
      complete.push_back(std::move(frames_.front()));
      frames_.pop_front();
    }
  }
  for (const FrameInFlight& done : complete) {
    for (const AppendBlock& block : done.blocks) written_(block, block.record, header_.segment_id);
  }
}

void SegmentWriter::AddToTable(const FrameInFlight& done) {
  for (const AppendBlock& block : done.blocks) {
    const auto [it, added] =
        table_refs_.try_emplace(block.ns, static_cast<uint16_t>(table_.namespaces.size()));
    if (added) table_.namespaces.push_back(block.ns);
    table_.records.push_back(block.record);
    table_.records.back().ns_ref = it->second;
  }
  ++table_.facts.frames;
}

size_t SegmentWriter::ios() const {
  MutexLock lock(&place_.gate->mutex);
  return ios_;
}

bool SegmentWriter::broken() const {
  MutexLock lock(&place_.gate->mutex);
  return broken_;
}

bool SegmentWriter::empty() const { return next_frame_ == 0; }

std::vector<SegmentWriter::Unwritten> SegmentWriter::TakeUnwritten() {
  MutexLock lock(&place_.gate->mutex);
  KV_CHECK(ios_ == 0);
  std::vector<Unwritten> unwritten;
  for (FrameInFlight& frame : frames_) unwritten.push_back({std::move(frame.blocks), frame.tries});
  frames_.clear();
  return unwritten;
}

void SegmentWriter::StartSeal(uint64_t sealed_at) {
  uint64_t offset = 0;
  {
    MutexLock lock(&place_.gate->mutex);
    KV_CHECK(ios_ == 0 && frames_.empty() && seal_state_ == SealState::kOpen);
    seal_state_ = SealState::kSealing;
    table_.facts.sealed_at = sealed_at;
    const size_t pages = TablePages(table_.namespaces.size(), table_.records.size()) + 1;
    footer_ = AlignedBuffer(pages * kUnit);
    EncodeFooter(&table_, place_.key, footer_.span());
    offset = place_.offset + place_.segment_bytes - pages * kUnit;
  }
  const auto settle = [this](bool ok) {
    MutexLock lock(&place_.gate->mutex);
    seal_state_ = ok ? SealState::kSealed : SealState::kFailed;
  };
  const auto write_footer = [this, settle, offset](bool ok) {
    if (!ok) {
      settle(false);
      return;
    }
    SubmitIo(IoOp::kWrite, offset, {{footer_.data(), footer_.size()}}, settle);
  };
  if (place_.bug == PlantedBug::kSealWithoutSync) {
    write_footer(true);
  } else {
    SubmitIo(IoOp::kSync, 0, {}, write_footer);
  }
}

SegmentWriter::SealState SegmentWriter::seal_state() const {
  MutexLock lock(&place_.gate->mutex);
  return seal_state_;
}

}  // namespace kvarve

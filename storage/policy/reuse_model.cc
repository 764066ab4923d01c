#include "storage/policy/reuse_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "storage/block/checksum.h"

namespace kvarve {
namespace {

constexpr double kSurest = 0.95;  // no age is certain to be the last
constexpr uint32_t kSavedMagic = 0x7a61684bu;
constexpr uint32_t kSavedVersion = 1;

struct SavedHeader {
  uint32_t magic = kSavedMagic;
  uint32_t version = kSavedVersion;
  uint32_t classes = ReuseClass::kCount;
  uint32_t ages = ReuseModel::kAges;
};

template <typename Events>
void AddTo(Events* sum, const Events& more) {
  for (int age = 0; age < ReuseModel::kAges; ++age) {
    sum->reused[age] += more.reused[age];
    sum->left[age] += more.left[age];
    sum->waiting[age] += more.waiting[age];
  }
}

// P(reused at an age | waited up to it), shrunk towards `prior`. Who leaves or waits within an age
// counts half there.
template <typename Events>
std::array<double, ReuseModel::kAges> HazardsOf(
    const Events& events, double weight, const std::array<double, ReuseModel::kAges>& prior) {
  std::array<double, ReuseModel::kAges> hazards{};
  double later = 0;
  for (int age = ReuseModel::kAges - 1; age >= 0; --age) {
    const double ended = events.left[age] + events.waiting[age];
    later += events.reused[age] + ended;
    const double at_risk = later - ended / 2 + weight;
    hazards[age] = std::min(kSurest, (events.reused[age] + weight * prior[age]) / at_risk);
  }
  return hazards;
}

}  // namespace

int ReuseClass::OfResponse(uint32_t tokens) {
  if (tokens == UINT32_MAX) return 4;
  return tokens <= 64 ? 0 : tokens <= 256 ? 1 : tokens <= 1024 ? 2 : 3;
}

double ReuseModel::AgeStart(int age) {
  if (age < 4) return age;
  return std::ldexp(4 + age % 4, age / 4 - 1);
}

ReuseModel::ReuseModel(const ReuseOptions& options)
    : options_(options), events_(ReuseClass::kCount), worth_(ReuseClass::kCount) {}

bool ReuseModel::FitStep(double touches) {
  if (next_class_ < 0) {
    FitLevels();
    next_class_ = 0;
    return true;
  }
  FitClass(next_class_);
  if (++next_class_ < ReuseClass::kCount) return true;
  next_class_ = -1;
  Forget(touches);
  return false;
}

void ReuseModel::FitLevels() {
  Events all;
  std::array<Events, ReuseClass::kHits> by_hits{};
  std::array<Events, kMiddle> middle{};
  for (int i = 0; i < ReuseClass::kCount; ++i) AddTo(&middle[i / ReuseClass::kChain], events_[i]);
  for (int i = 0; i < kMiddle; ++i) AddTo(&by_hits[i / ReuseClass::kResponse], middle[i]);
  for (const Events& events : by_hits) AddTo(&all, events);

  double reuses = 0;
  for (const float reused : all.reused) reuses += reused;
  trained_ = reuses >= kMinReuses;
  const Hazards root = HazardsOf(all, 1, Hazards{});
  for (int hits = 0; hits < ReuseClass::kHits; ++hits) {
    const Hazards hazards = HazardsOf(by_hits[hits], options_.root_shrinkage, root);
    for (int i = hits * ReuseClass::kResponse; i < (hits + 1) * ReuseClass::kResponse; ++i)
      middle_hazard_[i] = HazardsOf(middle[i], options_.shrinkage, hazards);
  }
}

void ReuseModel::FitClass(int of_class) {
  const Hazards hazards = HazardsOf(events_[of_class], options_.shrinkage,
                                    middle_hazard_[of_class / ReuseClass::kChain]);
  // The curve of reuses against residence, from age to age; the worth at an age is the steepest way
  // from there to a later point, which is an edge of the upper hull of what follows.
  std::array<double, kAges> reused{}, residence{};
  double alive = 1;
  for (int age = 0; age + 1 < kAges; ++age) {
    const double next = alive * (1 - hazards[age]);
    reused[age + 1] = reused[age] + alive - next;
    residence[age + 1] = residence[age] + (AgeStart(age + 1) - AgeStart(age)) * (alive + next) / 2;
    alive = next;
  }
  const auto slope = [&](int from, int to) {
    const double length = residence[to] - residence[from];
    return length > 0 ? (reused[to] - reused[from]) / length : 0;
  };
  Ages& worth = worth_[of_class];
  worth.fill(0);
  std::array<int, kAges> hull;  // the nearest last
  int size = 0;
  hull[size++] = kAges - 1;
  for (int from = kAges - 2; from >= 0; --from) {
    while (size >= 2 && slope(from, hull[size - 1]) <= slope(hull[size - 1], hull[size - 2]))
      --size;
    worth[from] = static_cast<float>(slope(from, hull[size - 1]));
    hull[size++] = from;
  }
}

void ReuseModel::Forget(double touches) {
  const auto kept = static_cast<float>(std::pow(1 - options_.forgotten, touches / 1000));
  for (Events& events : events_) {
    for (float& reused : events.reused) reused *= kept;
    for (float& left : events.left) left *= kept;
    events.waiting.fill(0);
  }
}

std::string ReuseModel::Save() const {
  const SavedHeader header;
  std::string saved(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Events& events : events_) {
    saved.append(reinterpret_cast<const char*>(events.reused.data()), sizeof(Ages));
    saved.append(reinterpret_cast<const char*>(events.left.data()), sizeof(Ages));
  }
  saved.append(reinterpret_cast<const char*>(worth_.data()), worth_.size() * sizeof(Ages));
  const uint64_t crc = Crc64(trained_ ? 1 : 0, saved.data(), saved.size());
  saved.push_back(trained_ ? 1 : 0);
  saved.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  return saved;
}

bool ReuseModel::Load(std::string_view saved) {
  constexpr size_t kTables = sizeof(SavedHeader) + 3 * ReuseClass::kCount * sizeof(Ages);
  if (saved.size() != kTables + 1 + sizeof(uint64_t)) return false;
  const SavedHeader header;
  if (std::memcmp(saved.data(), &header, sizeof(header)) != 0) return false;
  const char trained = saved[kTables];
  uint64_t crc = 0;
  std::memcpy(&crc, saved.data() + kTables + 1, sizeof(crc));
  if (trained < 0 || trained > 1) return false;
  if (Crc64(static_cast<uint64_t>(trained), saved.data(), kTables) != crc) return false;
  const char* at = saved.data() + sizeof(header);
  for (Events& events : events_) {
    std::memcpy(events.reused.data(), at, sizeof(Ages));
    std::memcpy(events.left.data(), at + sizeof(Ages), sizeof(Ages));
    events.waiting.fill(0);
    at += 2 * sizeof(Ages);
  }
  std::memcpy(worth_.data(), at, worth_.size() * sizeof(Ages));
  trained_ = trained == 1;
  next_class_ = -1;
  return true;
}

}  // namespace kvarve

// lookup, prefetch, put, get: blocks by hand, to try a daemon out and to script against it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/block_input.h"
#include "client/cli/context.h"
#include "client/cli/output.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr size_t kBlocksPerCall = 64;  // of a get: bounds the memory it takes
constexpr uint64_t kStagingBytes = 64ull << 20;

// A connected client with the flags' namespace open, and the flags' keys.
struct Opened {
  std::unique_ptr<Client> client;
  ClientNamespace ns = 0;
  uint64_t block_bytes = 0;
  std::vector<BlockKey> keys;
};

absl::StatusOr<Opened> Open(const Context& context, const BlockFlags& flags,
                            uint64_t staging_bytes) {
  Opened opened;
  KV_ASSIGN_OR_RETURN(const NamespaceDescriptor descriptor, DescriptorOf(flags));
  KV_ASSIGN_OR_RETURN(opened.keys, KeysOf(flags));
  opened.block_bytes = descriptor.block_bytes;
  KV_ASSIGN_OR_RETURN(opened.client, Connect(context, staging_bytes));
  KV_ASSIGN_OR_RETURN(opened.ns, opened.client->OpenNamespace(descriptor));
  return opened;
}

// A wrong command line has another exit code than a daemon that refuses.
int ReportOpen(const Context& context, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument ||
      status.code() == absl::StatusCode::kNotFound) {
    return ReportUsage(context, ToStd(status.message()));
  }
  return Report(context, status);
}

int Lookup(const Context& context, const BlockFlags& flags) {
  const absl::StatusOr<Opened> opened = Open(context, flags, 0);
  if (!opened.ok()) return ReportOpen(context, opened.status());
  const absl::StatusOr<LookupResult> found = opened->client->Lookup(opened->ns, opened->keys);
  if (!found.ok()) return Report(context, found.status());
  const size_t asked = opened->keys.size();
  if (context.json) {
    PrintJson({{"asked_blocks", asked},
               {"hit_blocks", found->hit_blocks},
               {"host_blocks", found->host_blocks}});
  } else {
    Print(absl::StrFormat("%d of %d blocks found (%s)\n", found->hit_blocks, asked,
                          FormatBytes(found->hit_blocks * opened->block_bytes)));
  }
  return found->hit_blocks == asked ? kExitGood : kExitMiss;
}

int Prefetch(const Context& context, const BlockFlags& flags) {
  const absl::StatusOr<Opened> opened = Open(context, flags, 0);
  if (!opened.ok()) return ReportOpen(context, opened.status());
  const absl::StatusOr<PrefetchResult> found = opened->client->Prefetch(opened->ns, opened->keys);
  if (!found.ok()) return Report(context, found.status());
  const size_t asked = opened->keys.size();
  if (context.json) {
    PrintJson({{"asked_blocks", asked},
               {"hit_blocks", found->hit_blocks},
               {"started_blocks", found->started_blocks}});
  } else {
    Print(absl::StrFormat("%d of %d blocks found, %d of them on their way into memory\n",
                          found->hit_blocks, asked, found->started_blocks));
  }
  return found->hit_blocks == asked ? kExitGood : kExitMiss;
}

struct PutFlags {
  BlockFlags blocks;
  std::string file = "-";
  bool pad = false;
};

// Cuts the data into blocks; with `pad` the last one is filled up with zeros.
absl::StatusOr<std::vector<const std::byte*>> Cut(std::string* data, uint64_t block_bytes,
                                                  bool pad) {
  if (data->empty()) return absl::InvalidArgumentError("nothing to put: the input is empty");
  const uint64_t rest = data->size() % block_bytes;
  if (rest != 0 && !pad) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the input has %d bytes, which is no multiple of the block's %d; --pad "
                        "fills the last one up",
                        data->size(), block_bytes));
  }
  if (rest != 0) data->resize(data->size() + block_bytes - rest);
  std::vector<const std::byte*> sources;
  for (size_t at = 0; at < data->size(); at += block_bytes) {
    sources.push_back(reinterpret_cast<const std::byte*>(data->data()) + at);
  }
  return sources;
}

int PrintPut(const Context& context, const Opened& opened, const std::vector<PutOutcome>& outcomes,
             const std::string& reason) {
  size_t stored = 0, existed = 0;
  Json list = Json::array();
  Table table({"block", "key", "result"}, /*left=*/true);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const std::string key = ToHex(opened.keys[i].bytes);
    stored += outcomes[i] == PutOutcome::kStored ? 1 : 0;
    existed += outcomes[i] == PutOutcome::kExists ? 1 : 0;
    const std::string result(PutOutcomeName(outcomes[i]));
    list.push_back({{"key", key}, {"result", result}});
    table.Add({std::to_string(i), key, result});
  }
  if (context.json) {
    Json json = {{"stored", stored}, {"existed", existed}, {"blocks", std::move(list)}};
    if (!reason.empty()) json["reason"] = reason;
    PrintJson(json);
  } else {
    Print(table.Text());
    if (!reason.empty()) std::fprintf(stderr, "kvarve: a part was not taken: %s\n", reason.c_str());
  }
  return stored + existed == outcomes.size() ? kExitGood : kExitFailed;
}

int Put(const Context& context, const PutFlags& flags) {
  if (flags.file == "-" && flags.blocks.tokens_file == "-") {
    return ReportUsage(context, "blocks and tokens cannot both come from standard input");
  }
  absl::StatusOr<std::string> data = ReadInput(flags.file);
  if (!data.ok()) return ReportOpen(context, data.status());
  absl::StatusOr<Opened> opened = Open(context, flags.blocks, kStagingBytes);
  if (!opened.ok()) return ReportOpen(context, opened.status());
  const auto sources = Cut(&*data, opened->block_bytes, flags.pad);
  if (!sources.ok()) return ReportOpen(context, sources.status());
  if (sources->size() > opened->keys.size()) {
    return ReportUsage(context, absl::StrFormat("%d blocks of data, but keys for %d only",
                                                sources->size(), opened->keys.size()));
  }
  PutChain chain;
  chain.keys = std::span(opened->keys).first(sources->size());
  std::string reason;
  const auto outcomes = opened->client->Put(opened->ns, chain, *sources, &reason);
  if (!outcomes.ok()) return Report(context, outcomes.status());
  return PrintPut(context, *opened, *outcomes, reason);
}

struct GetFlags {
  BlockFlags blocks;
  std::string file = "-";
  bool no_verify = false;
};

// Where a get writes to; the file is made, or emptied, when there is something to write.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {
    if (path == "-") file_ = stdout;
  }
  ~Output() {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  absl::Status Write(const std::byte* data, size_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    if (file_ == nullptr) file_ = std::fopen(path_.c_str(), "we");
    is_refused_ = file_ == nullptr;
    if (is_refused_) return absl::InvalidArgumentError(path_ + ": " + std::strerror(errno));
    if (std::fwrite(data, 1, bytes, file_) == bytes) return absl::OkStatus();
    return absl::InternalError(absl::StrFormat("writing: %s", std::strerror(errno)));
  }
  // Whether the path is no good.
  bool is_refused() const { return is_refused_; }
  absl::Status Flush() {
    if (file_ == nullptr || std::fflush(file_) == 0) return absl::OkStatus();
    return absl::InternalError("the output cannot be written");
  }

 private:
  const std::string path_;
  std::FILE* file_ = nullptr;
  bool is_refused_ = false;
};

// Reads the leading blocks found, a part at a time, and writes them out. Returns how many.
absl::StatusOr<size_t> Copy(const Opened& opened, bool verify, Output* output) {
  std::vector<std::byte> memory(std::min(opened.keys.size(), kBlocksPerCall) * opened.block_bytes);
  size_t done = 0;
  while (done < opened.keys.size()) {
    const auto keys =
        std::span(opened.keys).subspan(done, std::min(kBlocksPerCall, opened.keys.size() - done));
    std::vector<std::byte*> destinations(keys.size());
    for (size_t i = 0; i < keys.size(); ++i)
      destinations[i] = memory.data() + i * opened.block_bytes;
    KV_ASSIGN_OR_RETURN(const size_t got,
                        opened.client->Get(opened.ns, keys, destinations, 0, verify));
    KV_RETURN_IF_ERROR(output->Write(memory.data(), got * opened.block_bytes));
    done += got;
    if (got < keys.size()) break;
  }
  return done;
}

int Get(const Context& context, const GetFlags& flags) {
  const bool to_stdout = flags.file == "-";
  if (to_stdout && context.json)
    return ReportUsage(context, "--json needs --output: blocks go to standard output");
  if (to_stdout && ::isatty(STDOUT_FILENO) != 0) {
    return ReportUsage(context,
                       "blocks are binary: send standard output to a file, or use --output");
  }
  const absl::StatusOr<Opened> opened = Open(context, flags.blocks, kStagingBytes);
  if (!opened.ok()) return ReportOpen(context, opened.status());
  Output output(flags.file);
  const absl::StatusOr<size_t> got = Copy(*opened, !flags.no_verify, &output);
  if (output.is_refused()) return ReportOpen(context, got.status());
  if (!got.ok()) return Report(context, got.status());
  if (const absl::Status flushed = output.Flush(); !flushed.ok()) return Report(context, flushed);
  const uint64_t mismatches = opened->client->State().checksum_mismatches;
  if (context.json) {
    PrintJson({{"asked_blocks", opened->keys.size()},
               {"hit_blocks", *got},
               {"bytes", *got * opened->block_bytes},
               {"verified", !flags.no_verify},
               {"checksum_mismatches", mismatches}});
  } else {
    std::fprintf(stderr, "%zu of %zu blocks (%s)%s\n", *got, opened->keys.size(),
                 FormatBytes(*got * opened->block_bytes).c_str(),
                 flags.no_verify  ? ", not verified"
                 : mismatches > 0 ? ", the next one is damaged"
                                  : ", verified");
  }
  return *got == opened->keys.size() ? kExitGood : kExitMiss;
}

void AddBlockFlags(CLI::App* app, BlockFlags* flags) {
  app->add_option("--model", flags->model, "Namespace: the model's name")->capture_default_str();
  app->add_option("--model-digest", flags->model_digest, "Namespace: names the weights")
      ->capture_default_str();
  app->add_option("--salt", flags->salt, "Namespace: keeps it apart from others of the same name");
  app->add_option("--block-bytes", flags->block_bytes, "Namespace: bytes a block")
      ->capture_default_str();
  app->add_option("--block-tokens", flags->block_tokens, "Namespace: tokens a block")
      ->capture_default_str();
  app->add_option("--key", flags->keys,
                  "Block key, 64 hexadecimal digits; may be given again for a chain")
      ->allow_extra_args(false);  // a file may follow
  app->add_option("--tokens", flags->tokens, "Token ids, as in 1,2,3: keys by chain hash");
  app->add_option("--tokens-file", flags->tokens_file, "The same from a file; - is standard input");
}

}  // namespace

void AddBlockCommands(CLI::App* app, Context* context) {
  CLI::App* const lookup =
      app->add_subcommand("lookup", "How many leading blocks of a chain are there");
  const auto lookup_flags = std::make_shared<BlockFlags>();
  AddBlockFlags(lookup, lookup_flags.get());
  lookup->callback([=] { context->command = [=] { return Lookup(*context, *lookup_flags); }; });

  CLI::App* const prefetch = app->add_subcommand(
      "prefetch", "Have the leading blocks found brought into memory, without waiting for them");
  const auto prefetch_flags = std::make_shared<BlockFlags>();
  AddBlockFlags(prefetch, prefetch_flags.get());
  prefetch->callback(
      [=] { context->command = [=] { return Prefetch(*context, *prefetch_flags); }; });

  CLI::App* const put = app->add_subcommand("put", "Store a file as blocks of a chain");
  const auto put_flags = std::make_shared<PutFlags>();
  AddBlockFlags(put, &put_flags->blocks);
  put->add_option("file", put_flags->file, "What to store; - is standard input")
      ->capture_default_str();
  put->add_flag("--pad", put_flags->pad, "Fill the last block up with zeros");
  put->callback([=] { context->command = [=] { return Put(*context, *put_flags); }; });

  CLI::App* const get =
      app->add_subcommand("get", "Read the leading blocks found, and verify them");
  const auto get_flags = std::make_shared<GetFlags>();
  AddBlockFlags(get, &get_flags->blocks);
  get->add_option("--output,-o", get_flags->file,
                  "Where to, when a block is found; - is standard output")
      ->capture_default_str();
  get->add_flag("--no-verify", get_flags->no_verify, "Do not compare checksums");
  get->callback([=] { context->command = [=] { return Get(*context, *get_flags); }; });
}

}  // namespace kvarve::cli

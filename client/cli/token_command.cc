// token key|issue|inspect|revoke: signed tokens of remote callers, made and looked at without a
// daemon.
#include <sys/random.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/context.h"
#include "client/cli/files.h"
#include "client/cli/output.h"
#include "client/identity/key_set.h"
#include "client/identity/revocations.h"
#include "client/identity/token.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr int64_t kMaxLifeSeconds = 366 * 86'400;
constexpr mode_t kSecretMode = 0600;
constexpr mode_t kPublicMode = 0644;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct KeyFlags {
  std::string key = "kvarve-token.key", keys = "kvarve-token-keys.json", id;
};
struct IssueFlags {
  std::string key = "kvarve-token.key", id, tenant, subject, issuer, life = "24h";
  std::vector<std::string> verbs = {"lookup", "read", "write", "invalidate", "stats"};
  std::vector<std::string> audience = {"kvarve"};
};
struct InspectFlags {
  std::string token, keys, audience = "kvarve";
};
struct RevokeFlags {
  std::string what, file = "kvarve-revoked";
  bool certificate = false;
};

std::string RandomId() {
  std::array<uint8_t, 16> bytes;
  KV_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return ToHex(bytes);
}

absl::Status NewKey(const KeyFlags& flags, std::string* id) {
  KV_ASSIGN_OR_RETURN(const std::string pem, NewPrivateKey());
  KV_ASSIGN_OR_RETURN(PublicKey key, PublicKeyOf(pem));
  KeySet keys;
  if (::access(flags.keys.c_str(), F_OK) == 0) {
    KV_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.keys, kMaxKeySetBytes));
    const absl::StatusOr<KeySet> known = ParseKeySet(text);
    if (!known.ok()) return InFile(flags.keys, known.status());
    keys = *known;
  }
  *id = flags.id.empty() ? "key-" + RandomId().substr(0, 8) : flags.id;
  if (!keys.emplace(*id, std::move(key)).second) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s has a key \"%s\" already; choose another --id", flags.keys, *id));
  }
  if (id->size() > kMaxKeyIdBytes) return absl::InvalidArgumentError("--id is too long");
  // The private half first: a key set with a key that nobody has is harmless, but of no use.
  KV_RETURN_IF_ERROR(WriteNewFile(flags.key, pem + "# kid: " + *id + "\n", kSecretMode));
  return ReplaceFile(flags.keys, KeySetJson(keys), kPublicMode);
}

int Key(const Context& context, const KeyFlags& flags) {
  std::string id;
  const absl::Status made = NewKey(flags, &id);
  if (!made.ok()) return Report(context, made);
  if (context.json) {
    PrintJson({{"kid", id}, {"key", flags.key}, {"keys", flags.keys}});
  } else {
    Print(
        absl::StrFormat("%s holds the private key \"%s\": keep it where tokens are issued\n"
                        "%s holds the public one: rpc.token_keys_file of each kvarved\n",
                        flags.key, id, flags.keys));
  }
  return kExitGood;
}

// The key's id: given, or noted behind the key by `kvarve token key`.
absl::StatusOr<std::string> KeyIdOf(const IssueFlags& flags, std::string_view pem) {
  if (!flags.id.empty()) return flags.id;
  constexpr std::string_view kNote = "\n# kid: ";
  const size_t note = pem.rfind(kNote);
  if (note == pem.npos) {
    return absl::InvalidArgumentError("say the key's id with --id: this key file does not");
  }
  std::string_view id = pem.substr(note + kNote.size());
  return std::string(id.substr(0, id.find('\n')));
}

absl::StatusOr<std::string> Issued(const IssueFlags& flags, TokenClaims* claims) {
  KV_ASSIGN_OR_RETURN(const std::string pem, ReadFile(flags.key, kMaxPemBytes));
  KV_ASSIGN_OR_RETURN(const std::string id, KeyIdOf(flags, pem));
  KV_ASSIGN_OR_RETURN(const int64_t life, ParseDuration(flags.life));
  const int64_t seconds = life / kNanosPerSecond;
  if (seconds < 1 || seconds > kMaxLifeSeconds) {
    return absl::InvalidArgumentError("--for is 1 s to 366 days, as in 90m or 24h");
  }
  claims->id = RandomId();
  claims->tenant = flags.tenant;
  claims->subject = flags.subject;
  claims->issuer = flags.issuer;
  claims->audience = flags.audience;
  KV_ASSIGN_OR_RETURN(claims->verbs, VerbSet::Parse(flags.verbs));
  claims->issued_at = claims->not_before = Now();
  claims->expires_at = claims->issued_at + seconds;
  return SignToken(*claims, id, pem);
}

int Issue(const Context& context, const IssueFlags& flags) {
  TokenClaims claims;
  const absl::StatusOr<std::string> token = Issued(flags, &claims);
  if (!token.ok()) return Report(context, token.status());
  if (context.json) {
    PrintJson({{"token", *token}, {"jti", claims.id}, {"expires_at", claims.expires_at}});
  } else {
    Print(*token + "\n");
  }
  return kExitGood;
}

absl::StatusOr<std::string> TokenOf(std::string text) {
  if (text == "-") std::getline(std::cin, text);
  const size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == text.npos ? 0 : end + 1);
  if (text.empty()) return absl::InvalidArgumentError("no token; \"-\" reads it from the input");
  return text;
}

int Inspect(const Context& context, const InspectFlags& flags) {
  const absl::StatusOr<std::string> token = TokenOf(flags.token);
  if (!token.ok()) return Report(context, token.status());
  const absl::StatusOr<UnverifiedToken> parts = ReadUnverified(*token);
  if (!parts.ok()) return Report(context, parts.status());
  std::string verdict = "not verified; --keys FILE verifies it";
  int code = kExitGood;
  if (!flags.keys.empty()) {
    const absl::StatusOr<std::string> text = ReadFile(flags.keys, kMaxKeySetBytes);
    if (!text.ok()) return Report(context, text.status());
    const absl::StatusOr<KeySet> keys = ParseKeySet(*text);
    if (!keys.ok()) return Report(context, InFile(flags.keys, keys.status()));
    TokenFault fault = TokenFault::kNone;
    const auto claims = VerifyToken(*token, *keys, {flags.audience, ""}, Now(), &fault);
    verdict = claims.ok() ? "good" : std::string(claims.status().message());
    if (!claims.ok()) code = kExitFailed;
  }
  if (context.json) {
    const auto json = [](const std::string& text) {
      Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      return parsed.is_discarded() ? Json(nullptr) : parsed;
    };
    PrintJson({{"header", json(parts->header_json)},
               {"claims", json(parts->claims_json)},
               {"verdict", verdict}});
  } else {
    Print(absl::StrFormat("header  %s\nclaims  %s\n%s\n", Plain(parts->header_json),
                          Plain(parts->claims_json), verdict));
  }
  return code;
}

// What stands for it in the list: a token's id and end, or a certificate's fingerprint.
absl::Status AddRevoked(const RevokeFlags& flags, Revocations* list, std::string* name) {
  bool is_certificate = flags.certificate || flags.what.ends_with(".pem");
  std::string what = flags.what;
  // A file's name taken for an id would revoke nothing, and say that it did.
  if (!is_certificate && what != "-" && ::access(what.c_str(), F_OK) == 0) {
    KV_ASSIGN_OR_RETURN(const std::string text, ReadFile(what, kMaxPemBytes));
    is_certificate = text.find("-----BEGIN CERTIFICATE") != text.npos;
    what = text.substr(0, text.find('\n'));
  }
  if (is_certificate) {
    KV_ASSIGN_OR_RETURN(*name, FingerprintOf(flags.what));
    list->certificates.insert(*name);
    return absl::OkStatus();
  }
  const bool is_of_file = what != flags.what;
  KV_ASSIGN_OR_RETURN(what, TokenOf(what));
  *name = what;
  int64_t expires = 0;
  const auto parts = ReadUnverified(what);
  if (!parts.ok() && is_of_file) {
    return absl::InvalidArgumentError(flags.what + " holds neither a token nor a certificate");
  }
  if (parts.ok()) {
    const absl::StatusOr<TokenClaims> claims = ParseClaims(parts->claims_json);
    if (!claims.ok()) return claims.status();
    *name = claims->id;
    expires = claims->expires_at;
  }
  const absl::StatusOr<Revocations> one =
      ParseRevocations(absl::StrFormat("token %s %d", *name, expires));
  if (!one.ok() || one->tokens.size() != 1) {
    return absl::InvalidArgumentError("is neither a token nor a token's id");
  }
  list->tokens[*name] = expires;
  return absl::OkStatus();
}

absl::Status Revoked(const RevokeFlags& flags, std::string* name) {
  Revocations list;
  if (::access(flags.file.c_str(), F_OK) == 0) {
    KV_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.file, kMaxRevocationBytes));
    const absl::StatusOr<Revocations> known = ParseRevocations(text);
    if (!known.ok()) return InFile(flags.file, known.status());
    list = *known;
  }
  KV_RETURN_IF_ERROR(AddRevoked(flags, &list, name));
  return ReplaceFile(flags.file, RevocationsText(list, Now()), kPublicMode);
}

int Revoke(const Context& context, const RevokeFlags& flags) {
  std::string name;
  const absl::Status revoked = Revoked(flags, &name);
  if (!revoked.ok()) return Report(context, revoked);
  if (context.json) {
    PrintJson({{"revoked", name}, {"file", flags.file}});
  } else {
    Print(absl::StrFormat("%s is revoked in %s: rpc.revocations_file of each kvarved\n", name,
                          flags.file));
  }
  return kExitGood;
}

void AddIssue(CLI::App* token, Context* context) {
  CLI::App* const issue = token->add_subcommand("issue", "Signs a token");
  const auto flags = std::make_shared<IssueFlags>();
  issue->add_option("--key", flags->key, "Private key, of `kvarve token key`")
      ->capture_default_str();
  issue->add_option("--id", flags->id, "The key's id, where its file does not say it");
  issue->add_option("--tenant", flags->tenant, "Whose blocks it is for")->required();
  issue->add_option("--verbs", flags->verbs, "What it allows")
      ->delimiter(',')
      ->capture_default_str();
  issue->add_option("--for", flags->life, "How long it is good")->capture_default_str();
  issue->add_option("--audience", flags->audience, "rpc.token_audience of the daemons")
      ->capture_default_str();
  issue->add_option("--subject", flags->subject, "Who uses it, for logs");
  issue->add_option("--issuer", flags->issuer, "rpc.token_issuer of the daemons");
  issue->callback([=] { context->command = [=] { return Issue(*context, *flags); }; });
}

void AddKey(CLI::App* token, Context* context) {
  CLI::App* const key = token->add_subcommand("key", "Makes a key that signs tokens");
  const auto flags = std::make_shared<KeyFlags>();
  key->add_option("--key", flags->key, "New file for the private key")->capture_default_str();
  key->add_option("--keys", flags->keys, "Key set that the public key is added to")
      ->capture_default_str();
  key->add_option("--id", flags->id, "The key's id; default: a random one");
  key->callback([=] { context->command = [=] { return Key(*context, *flags); }; });
}

void AddInspect(CLI::App* token, Context* context) {
  CLI::App* const inspect = token->add_subcommand("inspect", "Shows what a token says");
  const auto flags = std::make_shared<InspectFlags>();
  inspect->add_option("token", flags->token, "The token, or - to read it from the input")
      ->required();
  inspect->add_option("--keys", flags->keys, "Key set to verify it with");
  inspect->add_option("--audience", flags->audience, "Who it must be for")->capture_default_str();
  inspect->callback([=] { context->command = [=] { return Inspect(*context, *flags); }; });
}

void AddRevoke(CLI::App* token, Context* context) {
  CLI::App* const revoke =
      token->add_subcommand("revoke", "Adds a token or certificate to a list of revoked ones");
  const auto flags = std::make_shared<RevokeFlags>();
  revoke
      ->add_option("what", flags->what,
                   "A token or its id (jti), the file of a token or a certificate, or - to read a "
                   "token from the input")
      ->required();
  revoke->add_flag("--certificate", flags->certificate,
                   "It is a certificate's file, whatever its name");
  revoke->add_option("--file", flags->file, "The list")->capture_default_str();
  revoke->callback([=] { context->command = [=] { return Revoke(*context, *flags); }; });
}

}  // namespace

void AddTokenCommand(CLI::App* app, Context* context) {
  CLI::App* const token = app->add_subcommand("token", "Signed tokens of remote callers");
  token->require_subcommand(1);
  AddKey(token, context);
  AddIssue(token, context);
  AddInspect(token, context);
  AddRevoke(token, context);
}

}  // namespace kvarve::cli

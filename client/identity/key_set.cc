#include "client/identity/key_set.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/identity/base64url.h"
#include "client/identity/openssl_ptr.h"
#include "storage/base/status_macros.h"

namespace kvarve {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMinRsaBits = 2048;
constexpr int kMaxRsaBits = 8192;
constexpr size_t kCoordinateBytes = 32;

using ParamBuilderPtr = std::unique_ptr<OSSL_PARAM_BLD, OpensslFree<OSSL_PARAM_BLD_free>>;
using ParamsPtr = std::unique_ptr<OSSL_PARAM, OpensslFree<OSSL_PARAM_free>>;

absl::StatusOr<std::string> Member(const Json& key, const char* name) {
  const auto found = key.find(name);
  if (found == key.end() || !found->is_string()) {
    return absl::InvalidArgumentError(absl::StrFormat("\"%s\" is missing", name));
  }
  return found->get<std::string>();
}

absl::StatusOr<std::string> Bytes(const Json& key, const char* name) {
  KV_ASSIGN_OR_RETURN(const std::string text, Member(key, name));
  std::optional<std::string> bytes = DecodeBase64Url(text);
  if (!bytes.has_value() || bytes->empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("\"%s\" is not base64url", name));
  }
  return *std::move(bytes);
}

BignumPtr Bignum(const std::string& bytes) {
  return BignumPtr(BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()),
                             static_cast<int>(bytes.size()), nullptr));
}

absl::StatusOr<KeyPtr> FromData(const char* type, OSSL_PARAM_BLD* builder) {
  const ParamsPtr params(OSSL_PARAM_BLD_to_param(builder));
  const KeyContextPtr context(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* raw = nullptr;
  const bool made = params != nullptr && context != nullptr &&
                    EVP_PKEY_fromdata_init(context.get()) == 1 &&
                    EVP_PKEY_fromdata(context.get(), &raw, EVP_PKEY_PUBLIC_KEY, params.get()) == 1;
  KeyPtr key(raw);
  if (made) {
    const KeyContextPtr check(EVP_PKEY_CTX_new_from_pkey(nullptr, key.get(), nullptr));
    if (check != nullptr && EVP_PKEY_public_check(check.get()) == 1) return key;
  }
  ERR_clear_error();
  return absl::InvalidArgumentError("its numbers are no key");
}

absl::StatusOr<KeyPtr> ReadEc(const Json& json) {
  KV_ASSIGN_OR_RETURN(const std::string curve, Member(json, "crv"));
  if (curve != "P-256") return absl::InvalidArgumentError("only the curve P-256 is taken");
  KV_ASSIGN_OR_RETURN(const std::string x, Bytes(json, "x"));
  KV_ASSIGN_OR_RETURN(const std::string y, Bytes(json, "y"));
  if (x.size() != kCoordinateBytes || y.size() != kCoordinateBytes) {
    return absl::InvalidArgumentError("\"x\" and \"y\" must have 32 bytes");
  }
  const std::string point = "\x04" + x + y;
  const ParamBuilderPtr builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                       point.size()) != 1) {
    return absl::InternalError("out of memory");
  }
  return FromData("EC", builder.get());
}

absl::StatusOr<KeyPtr> ReadRsa(const Json& json) {
  KV_ASSIGN_OR_RETURN(const std::string n, Bytes(json, "n"));
  KV_ASSIGN_OR_RETURN(const std::string e, Bytes(json, "e"));
  if (n.size() > kMaxRsaBits / 8 || e.size() > 8) {
    return absl::InvalidArgumentError("its numbers are too large");
  }
  const BignumPtr modulus = Bignum(n), exponent = Bignum(e);
  const ParamBuilderPtr builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr || modulus == nullptr || exponent == nullptr ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get()) != 1) {
    return absl::InternalError("out of memory");
  }
  return FromData("RSA", builder.get());
}

absl::StatusOr<TokenAlgorithm> AlgorithmOf(const EVP_PKEY* key) {
  if (EVP_PKEY_is_a(key, "RSA") == 1) {
    const int bits = EVP_PKEY_get_bits(key);
    if (bits >= kMinRsaBits && bits <= kMaxRsaBits) return TokenAlgorithm::kRs256;
    return absl::InvalidArgumentError(absl::StrFormat("an RSA key of %d bits; %d to %d are taken",
                                                      bits, kMinRsaBits, kMaxRsaBits));
  }
  char group[32] = {};
  size_t size = 0;
  if (EVP_PKEY_is_a(key, "EC") == 1 &&
      EVP_PKEY_get_utf8_string_param(key, OSSL_PKEY_PARAM_GROUP_NAME, group, sizeof(group),
                                     &size) == 1 &&
      std::string_view(group) == "prime256v1") {
    return TokenAlgorithm::kEs256;
  }
  ERR_clear_error();
  return absl::InvalidArgumentError("only EC keys on P-256 and RSA keys are taken");
}

absl::StatusOr<PublicKey> Exported(EVP_PKEY* key) {
  PublicKey result;
  KV_ASSIGN_OR_RETURN(result.algorithm, AlgorithmOf(key));
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_PUBKEY(bio.get(), key) != 1) {
    return absl::InternalError("cannot write a public key");
  }
  result.pem = Written(bio);
  return result;
}

absl::StatusOr<PublicKey> ReadKey(const Json& json) {
  for (const char* secret : {"d", "p", "q", "dp", "dq", "qi", "oth", "k"}) {
    if (json.contains(secret)) {
      return absl::InvalidArgumentError(
          "holds a secret; a set for verifying has public keys only (was it published so? then "
          "make a new key)");
    }
  }
  KV_ASSIGN_OR_RETURN(const std::string type, Member(json, "kty"));
  if (type != "EC" && type != "RSA") {
    return absl::InvalidArgumentError("only EC keys on P-256 and RSA keys are taken");
  }
  if (const auto use = json.find("use"); use != json.end() && *use != "sig") {
    return absl::InvalidArgumentError("\"use\" is not \"sig\"");
  }
  KV_ASSIGN_OR_RETURN(const KeyPtr key, type == "EC" ? ReadEc(json) : ReadRsa(json));
  KV_ASSIGN_OR_RETURN(PublicKey result, Exported(key.get()));
  if (const auto algorithm = json.find("alg"); algorithm != json.end()) {
    if (!algorithm->is_string() ||
        algorithm->get_ref<const std::string&>() != AlgorithmName(result.algorithm)) {
      return absl::InvalidArgumentError("\"alg\" is neither ES256 nor RS256, or not this key's");
    }
  }
  return result;
}

std::string BignumParam(const EVP_PKEY* key, const char* name) {
  BIGNUM* raw = nullptr;
  EVP_PKEY_get_bn_param(key, name, &raw);
  const BignumPtr number(raw);
  if (number == nullptr) return {};
  std::string bytes(static_cast<size_t>(BN_num_bytes(number.get())), '\0');
  BN_bn2bin(number.get(), reinterpret_cast<unsigned char*>(bytes.data()));
  return bytes;
}

Json KeyJson(const std::string& id, const PublicKey& key) {
  const BioPtr bio = ReadOnly(key.pem);
  const KeyPtr parsed(PEM_read_bio_PUBKEY(bio.get(), nullptr, NoPassphrase, nullptr));
  KV_CHECK(parsed != nullptr);
  const std::string algorithm(AlgorithmName(key.algorithm));
  if (key.algorithm == TokenAlgorithm::kRs256) {
    return {{"kty", "RSA"},
            {"kid", id},
            {"use", "sig"},
            {"alg", algorithm},
            {"n", EncodeBase64Url(BignumParam(parsed.get(), OSSL_PKEY_PARAM_RSA_N))},
            {"e", EncodeBase64Url(BignumParam(parsed.get(), OSSL_PKEY_PARAM_RSA_E))}};
  }
  unsigned char point[1 + 2 * kCoordinateBytes];
  size_t size = 0;
  KV_CHECK(EVP_PKEY_get_octet_string_param(parsed.get(), OSSL_PKEY_PARAM_PUB_KEY, point,
                                           sizeof(point), &size) == 1 &&
           size == sizeof(point) && point[0] == 4);
  const auto* bytes = reinterpret_cast<const char*>(point);
  return {{"kty", "EC"},
          {"kid", id},
          {"use", "sig"},
          {"alg", algorithm},
          {"crv", "P-256"},
          {"x", EncodeBase64Url({bytes + 1, kCoordinateBytes})},
          {"y", EncodeBase64Url({bytes + 1 + kCoordinateBytes, kCoordinateBytes})}};
}

}  // namespace

std::string_view AlgorithmName(TokenAlgorithm algorithm) {
  return algorithm == TokenAlgorithm::kEs256 ? "ES256" : "RS256";
}

absl::StatusOr<KeySet> ParseKeySet(std::string_view text) {
  if (text.size() > kMaxKeySetBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("beyond %d bytes", kMaxKeySetBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto list = json.is_object() ? json.find("keys") : json.end();
  if (!json.is_object() || list == json.end() || !list->is_array()) {
    return absl::InvalidArgumentError("is no JSON Web Key Set: {\"keys\": [...]}");
  }
  if (list->empty() || list->size() > kMaxKeys) {
    return absl::InvalidArgumentError(
        absl::StrFormat("has %d keys; 1 to %d are taken", list->size(), kMaxKeys));
  }
  KeySet keys;
  for (size_t i = 0; i < list->size(); ++i) {
    const auto wrong = [&](std::string_view why) {
      return absl::InvalidArgumentError(absl::StrFormat("key %d: %s", i, why));
    };
    const Json& key = (*list)[i];
    const auto id = key.is_object() ? key.find("kid") : key.end();
    if (!key.is_object() || id == key.end() || !id->is_string() ||
        id->get_ref<const std::string&>().empty() ||
        id->get_ref<const std::string&>().size() > kMaxKeyIdBytes) {
      return wrong("needs a \"kid\" of 1 to 128 bytes");
    }
    absl::StatusOr<PublicKey> read = ReadKey(key);
    if (!read.ok()) return wrong(std::string(read.status().message()));
    if (!keys.emplace(id->get<std::string>(), *std::move(read)).second) {
      return wrong("its \"kid\" is another key's too");
    }
  }
  return keys;
}

std::string KeySetJson(const KeySet& keys) {
  Json list = Json::array();
  for (const auto& [id, key] : keys) list.push_back(KeyJson(id, key));
  return Json{{"keys", std::move(list)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<PublicKey> PublicKeyOf(const std::string& private_pem) {
  const KeyPtr key = ReadPrivateKey(private_pem);
  if (key == nullptr) {
    return absl::InvalidArgumentError("holds no private key in PEM without a passphrase");
  }
  return Exported(key.get());
}

absl::StatusOr<std::string> NewPrivateKey() {
  const KeyPtr key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const BioPtr bio(BIO_new(BIO_s_secmem()));
  if (key == nullptr || bio == nullptr ||
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1) {
    ERR_clear_error();
    return absl::InternalError("OpenSSL cannot make a key");
  }
  return Written(bio);
}

}  // namespace kvarve

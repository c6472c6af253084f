"""Names of languages, and how the codes of several standards go together."""

from __future__ import annotations

# ISO 639-1 code, English name, and the ISO 639-3 codes under which models know the language, the usual one first
_TABLE = """\
af Afrikaans afr
am Amharic amh
ar Arabic arb ara
as Assamese asm
ast Asturian ast
az Azerbaijani azj aze
ba Bashkir bak
be Belarusian bel
bg Bulgarian bul
bn Bengali ben
br Breton bre
bs Bosnian bos
ca Catalan cat
ceb Cebuano ceb
cs Czech ces
cy Welsh cym
da Danish dan
de German deu
el Greek ell
en English eng
eo Esperanto epo
es Spanish spa
et Estonian est
eu Basque eus
fa Persian pes fas
ff Fulah fuv ful
fi Finnish fin
fr French fra
fy Western_Frisian fry
ga Irish gle
gd Scottish_Gaelic gla
gl Galician glg
gu Gujarati guj
ha Hausa hau
he Hebrew heb
hi Hindi hin
hr Croatian hrv
ht Haitian hat
hu Hungarian hun
hy Armenian hye
id Indonesian ind
ig Igbo ibo
ilo Iloko ilo
is Icelandic isl
it Italian ita
ja Japanese jpn
jv Javanese jav
ka Georgian kat
kk Kazakh kaz
km Khmer khm
kn Kannada kan
ko Korean kor
ku Kurdish kmr kur
ky Kyrgyz kir
lb Luxembourgish ltz
lg Ganda lug
ln Lingala lin
lo Lao lao
lt Lithuanian lit
lv Latvian lvs lav
mg Malagasy plt mlg
mi Maori mri
mk Macedonian mkd
ml Malayalam mal
mn Mongolian khk mon
mr Marathi mar
ms Malay zsm msa
mt Maltese mlt
my Burmese mya
ne Nepali npi nep
nl Dutch nld
no Norwegian nob nor
ns Northern_Sotho nso
oc Occitan oci
om Oromo gaz orm
or Odia ory ori
pa Punjabi pan
pl Polish pol
ps Pashto pbt pus
pt Portuguese por
ro Romanian ron
ru Russian rus
rw Kinyarwanda kin
sd Sindhi snd
si Sinhala sin
sk Slovak slk
sl Slovenian slv
sn Shona sna
so Somali som
sq Albanian als sqi
sr Serbian srp
ss Swati ssw
st Southern_Sotho sot
su Sundanese sun
sv Swedish swe
sw Swahili swh swa
ta Tamil tam
te Telugu tel
tg Tajik tgk
th Thai tha
ti Tigrinya tir
tk Turkmen tuk
tl Tagalog tgl
tn Tswana tsn
tr Turkish tur
tt Tatar tat
ug Uyghur uig
uk Ukrainian ukr
ur Urdu urd
uz Uzbek uzn uzb
vi Vietnamese vie
wo Wolof wol
xh Xhosa xho
yi Yiddish ydd yid
yo Yoruba yor
zh Chinese zho
zu Zulu zul
"""
_ROWS = [line.split() for line in _TABLE.splitlines()]
_NAMES = {row[0]: row[1].replace("_", " ") for row in _ROWS}
_SHORT_CODES = {code: row[0] for row in _ROWS for code in row[2:]}


def short_code(code: str) -> str:
    """The language of a tokenizer's code as clients write it: it for it_IT and ita_Latn; unknown ones stay."""
    language = code.split("_")[0]
    return _SHORT_CODES.get(language, language)


def language_name(code: str) -> str:
    """The English name of a short code; the code where it is not known."""
    return _NAMES.get(code, code)

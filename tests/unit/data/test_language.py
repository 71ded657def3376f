"""The language of a text."""

import pytest

from marin_dagster.data.language import language_of

SENTENCES = {
    "en": "The children walked to the old mill and counted the ducks on the water.",
    "de": "Die Kinder gingen zur alten Mühle und zählten die Enten auf dem Wasser.",
    "fr": "Les enfants marchèrent jusqu'au vieux moulin et comptèrent les canards sur l'eau.",
    "es": "Los niños caminaron hasta el viejo molino y contaron los patos en el agua.",
    "it": "I bambini camminarono fino al vecchio mulino e contarono le anatre sull'acqua.",
    "pt": "As crianças caminharam até o velho moinho e contaram os patos na água.",
    "nl": "De kinderen liepen naar de oude molen en telden de eenden op het water.",
    "sv": "Barnen gick till den gamla kvarnen och räknade ankorna på vattnet.",
    "pl": "Dzieci poszły do starego młyna i policzyły kaczki na wodzie.",
    "fi": "Lapset kävelivät vanhalle myllylle ja laskivat vedessä uivat ankat.",
    "tr": "Çocuklar eski değirmene yürüdü ve sudaki ördekleri saydı.",
    "ru": "Дети пошли к старой мельнице и пересчитали уток на воде.",
    "uk": "Діти пішли до старого млина і порахували качок на воді.",
    "ar": "مشى الأطفال إلى الطاحونة القديمة وعدّوا البط على الماء.",
    "hi": "बच्चे पुरानी चक्की तक पैदल गए और पानी पर बत्तखों को गिना।",
    "zh": "孩子们走到旧磨坊，数了数水面上的鸭子。",
    "ja": "子どもたちは古い水車小屋まで歩いて、水の上のあひるを数えました。",
    "ko": "아이들은 오래된 방앗간까지 걸어가서 물 위의 오리를 세었습니다.",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_one_sentence_tells_the_language(code: str):
    assert language_of(SENTENCES[code]) == code


@pytest.mark.parametrize("text", ["", "0x3f 12 44 91 1.5e-3 99", "xyzzy plugh foo bar qux corge"])
def test_what_is_in_no_language_is_told_to_be_in_none(text: str):
    assert language_of(text) == ""

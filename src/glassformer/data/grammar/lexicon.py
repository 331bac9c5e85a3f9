"""Words of the Chinese-English grammar.

Rules live in `sentences`; here is only what has to be said word by word: measure words, irregular forms, what goes with
what. English entries never begin with a silent h or a "you" sound, so a/an follows from the first letter.
"""

from typing import Literal, NamedTuple

Person = Literal["1s", "2", "3s", "3p"]


class NounPhrase(NamedTuple):
    """A noun phrase: Chinese, English as subject, person for agreement, English as object (if it differs)."""

    zh: str
    en: str
    person: Person
    as_object: str | None = None

    @property
    def object(self) -> str:
        return self.as_object or self.en


class Noun(NamedTuple):
    """A thing. Mass nouns (`of`) are counted in containers: 一杯茶, a cup of tea.

    `tags` connect nouns to verbs and adjectives.
    """

    zh: str
    measure: str
    one: str
    many: str
    tags: str
    of: str | None = None


class Adjective(NamedTuple):
    """A property of things that carry one of its tags; `linked` ones need 的 before the noun."""

    zh: str
    en: str
    comparative: str
    tags: str
    linked: bool = False


class Verb(NamedTuple):
    """A verb: base, third person, past, participle, -ing; `tags` of its objects; aspects it does not take.

    `animals` says whether they do it, too.
    """

    zh: str
    forms: str
    tags: str = ""
    without: str = ""
    negation: str = "不"
    animals: bool = False


PRONOUNS = (
    NounPhrase("我", "I", "1s", "me"),
    NounPhrase("你", "you", "2"),
    NounPhrase("他", "he", "3s", "him"),
    NounPhrase("她", "she", "3s", "her"),
    NounPhrase("我们", "we", "3p", "us"),
    NounPhrase("你们", "you", "2"),
    NounPhrase("他们", "they", "3p", "them"),
)

PROFESSIONS = (
    ("老师", "teacher", "teachers"),
    ("学生", "student", "students"),
    ("医生", "doctor", "doctors"),
    ("工程师", "engineer", "engineers"),
    ("演员", "actor", "actors"),
    ("司机", "driver", "drivers"),
    ("作家", "writer", "writers"),
    ("艺术家", "artist", "artists"),
    ("农民", "farmer", "farmers"),
)

PEOPLE = (
    NounPhrase("小明", "Xiaoming", "3s"),
    NounPhrase("李华", "Li Hua", "3s"),
    NounPhrase("学生们", "the students", "3p"),
    NounPhrase("孩子们", "the children", "3p"),
    NounPhrase("我妈妈", "my mother", "3s"),
    NounPhrase("我爸爸", "my father", "3s"),
    NounPhrase("他哥哥", "his brother", "3s"),
    NounPhrase("她姐姐", "her sister", "3s"),
    NounPhrase("我的朋友", "my friend", "3s"),
    NounPhrase("这个女孩", "this girl", "3s"),
    NounPhrase("那个男人", "that man", "3s"),
    NounPhrase("那些女人", "those women", "3p"),
    # a bare noun is definite where it is not a thing: 老师, the teacher
    *(NounPhrase(zh, f"the {one}", "3s") for zh, one, _ in PROFESSIONS),
)

NOUNS = (
    Noun("苹果", "个", "apple", "apples", "food fruit goods"),
    Noun("橘子", "个", "orange", "oranges", "food fruit goods"),
    Noun("香蕉", "根", "banana", "bananas", "food fruit goods"),
    Noun("鸡蛋", "个", "egg", "eggs", "food goods dish"),
    Noun("蛋糕", "个", "cake", "cakes", "food goods dish"),
    Noun("三明治", "个", "sandwich", "sandwiches", "food goods dish"),
    Noun("饺子", "个", "dumpling", "dumplings", "food goods dish"),
    Noun("面包", "块", "piece", "pieces", "food goods", "bread"),
    Noun("米饭", "碗", "bowl", "bowls", "food dish", "rice"),
    Noun("面条", "碗", "bowl", "bowls", "food dish", "noodles"),
    Noun("茶", "杯", "cup", "cups", "drink goods", "tea"),
    Noun("咖啡", "杯", "cup", "cups", "drink goods", "coffee"),
    Noun("牛奶", "杯", "glass", "glasses", "drink goods", "milk"),
    Noun("水", "杯", "glass", "glasses", "drink", "water"),
    Noun("书", "本", "book", "books", "reading writing goods"),
    Noun("杂志", "本", "magazine", "magazines", "reading goods"),
    Noun("报纸", "份", "newspaper", "newspapers", "reading goods"),
    Noun("信", "封", "letter", "letters", "reading writing"),
    Noun("故事", "个", "story", "stories", "reading writing sound"),
    Noun("电影", "部", "movie", "movies", "film"),
    Noun("歌", "首", "song", "songs", "writing song sound"),
    Noun("猫", "只", "cat", "cats", "animal"),
    Noun("狗", "只", "dog", "dogs", "animal"),
    Noun("老鼠", "只", "mouse", "mice", "animal"),
    Noun("羊", "只", "sheep", "sheep", "animal"),
    Noun("大象", "头", "elephant", "elephants", "animal"),
    Noun("鱼", "条", "fish", "fish", "animal food goods"),
    Noun("花", "朵", "flower", "flowers", "goods picture"),
    Noun("房子", "座", "house", "houses", "goods picture clean"),
    Noun("车", "辆", "car", "cars", "goods vehicle device clean picture"),
    Noun("自行车", "辆", "bicycle", "bicycles", "goods device"),
    Noun("电脑", "台", "computer", "computers", "goods device"),
    Noun("手机", "部", "phone", "phones", "goods device"),
    Noun("照片", "张", "photo", "photos", "item"),
    Noun("票", "张", "ticket", "tickets", "goods item"),
    Noun("雨伞", "把", "umbrella", "umbrellas", "goods item"),
    Noun("椅子", "把", "chair", "chairs", "goods item clean picture"),
    Noun("刀", "把", "knife", "knives", "goods item clean"),
    Noun("盒子", "个", "box", "boxes", "goods item"),
    Noun("杯子", "个", "cup", "cups", "goods item clean"),
    Noun("衬衫", "件", "shirt", "shirts", "goods clothes clean"),
    Noun("裙子", "条", "skirt", "skirts", "goods clothes clean"),
    Noun("帽子", "顶", "hat", "hats", "goods clothes"),
)

ADJECTIVES = (
    Adjective("大", "big", "bigger", "fruit animal device item picture vehicle"),
    Adjective("小", "small", "smaller", "fruit animal item picture vehicle"),
    Adjective("红", "red", "redder", "fruit clothes vehicle"),
    Adjective("热", "hot", "hotter", "drink dish"),
    Adjective("新", "new", "newer", "reading device clothes item film song"),
    Adjective("旧", "old", "older", "reading device clothes item"),
    Adjective("有趣", "interesting", "more interesting", "reading film", linked=True),
    Adjective("漂亮", "beautiful", "more beautiful", "clothes picture song", linked=True),
    Adjective("贵", "expensive", "more expensive", "goods", linked=True),
    Adjective("便宜", "cheap", "cheaper", "goods", linked=True),
)

# properties of people
FEELINGS = (
    Adjective("高", "tall", "taller", ""),
    Adjective("高兴", "happy", "happier", ""),
    Adjective("忙", "busy", "busier", ""),
    Adjective("累", "tired", "more tired", ""),
    Adjective("聪明", "smart", "smarter", ""),
    Adjective("年轻", "young", "younger", ""),
    Adjective("生气", "angry", "angrier", ""),
)

TRANSITIVE = (
    Verb("吃", "eat eats ate eaten eating", "food", animals=True),
    Verb("喝", "drink drinks drank drunk drinking", "drink", animals=True),
    Verb("买", "buy buys bought bought buying", "goods"),
    Verb("卖", "sell sells sold sold selling", "goods"),
    Verb("做", "make makes made made making", "dish"),
    Verb("看", "read reads read read reading", "reading"),
    Verb("看", "watch watches watched watched watching", "film"),
    Verb("写", "write writes wrote written writing", "writing"),
    Verb("唱", "sing sings sang sung singing", "song"),
    Verb("听", "listen listens listened listened listening +to", "sound"),
    Verb("画", "draw draws drew drawn drawing", "animal picture"),
    Verb("拿", "take takes took taken taking", "item", without="like"),
    Verb(
        "丢", "lose loses lost lost losing", "item device clothes", without="progressive like want habitual often can"
    ),
    Verb("开", "drive drives drove driven driving", "vehicle"),
    Verb("修", "fix fixes fixed fixed fixing", "device"),
    Verb("洗", "wash washes washed washed washing", "clean"),
    Verb("穿", "wear wears wore worn wearing", "clothes", without="progressive"),
    Verb("养", "keep keeps kept kept keeping", "animal", without="progressive"),
    Verb("找", "look looks looked looked looking +for", "item animal reading", without="like", animals=True),
    Verb("用", "use uses used used using", "device"),
    Verb("带", "bring brings brought brought bringing", "item drink", without="progressive like"),
    Verb(
        "看见",
        "see sees saw seen seeing",
        "animal vehicle picture",
        without="progressive like want habitual often",
        animals=True,
    ),
)

# no aspect but the plain present: 我喜欢苹果, I like apples
STATES = (
    Verb("喜欢", "like likes liked liked liking", "goods animal film song reading", animals=True),
    Verb("需要", "need needs needed needed needing", "goods item device"),
    Verb("有", "have has had had having", "goods animal item", negation="没"),
)

ABOUT_PEOPLE = (
    Verb("帮助", "help helps helped helped helping"),
    Verb("等", "wait waits waited waited waiting +for", without="like", animals=True),
    Verb("问", "ask asks asked asked asking", without="like"),
    Verb("找", "look looks looked looked looking +for", without="like", animals=True),
    Verb("教", "teach teaches taught taught teaching"),
    Verb("看见", "see sees saw seen seeing", without="progressive like want habitual often", animals=True),
)

INTRANSITIVE = (
    Verb("睡觉", "sleep sleeps slept slept sleeping", without="perfect", animals=True),
    Verb("跑步", "run runs ran run running", without="perfect", animals=True),
    Verb("游泳", "swim swims swam swum swimming", without="perfect", animals=True),
    Verb("跳舞", "dance dances danced danced dancing", without="perfect"),
    Verb("工作", "work works worked worked working", without="perfect"),
    Verb("哭", "cry cries cried cried crying", without="perfect like want"),
    Verb("笑", "laugh laughs laughed laughed laughing", without="perfect want"),
)

# 去过 is "have been to": the one verb whose perfect is another verb's
GO = Verb("去", "go goes went been going +to", without="like", animals=True)
DESTINATIONS = (
    ("北京", "Beijing"),
    ("上海", "Shanghai"),
    ("中国", "China"),
    ("学校", "the school"),
    ("公园", "the park"),
    ("商店", "the store"),
    ("图书馆", "the library"),
    ("医院", "the hospital"),
)

PLACES = (
    ("家", "at home"),
    ("学校", "at school"),
    ("公园", "in the park"),
    ("商店", "at the store"),
    ("图书馆", "in the library"),
    ("厨房", "in the kitchen"),
    ("北京", "in Beijing"),
)

SURFACES = (
    ("桌子上", "on the table"),
    ("床上", "on the bed"),
    ("房间里", "in the room"),
    ("厨房里", "in the kitchen"),
    ("公园里", "in the park"),
    ("椅子下", "under the chair"),
)

NUMERALS = (("两", "two"), ("三", "three"), ("四", "four"), ("五", "five"), ("十", "ten"), ("几", "several"))
POSSESSIVES = (
    ("我的", "my"),
    ("你的", "your"),
    ("他的", "his"),
    ("她的", "her"),
    ("我们的", "our"),
    ("他们的", "their"),
)

# times by aspect; English puts them last, Chinese before or after the subject
TIMES: dict[str, tuple[tuple[str, str], ...]] = {
    "past": (
        ("昨天", "yesterday"),
        ("上个星期", "last week"),
        ("今天早上", "this morning"),
        ("昨天晚上", "last night"),
    ),
    "perfect": (),
    "progressive": (("现在", "now"),),
    "future": (("明天", "tomorrow"), ("下个星期", "next week"), ("今天晚上", "tonight")),
    "want": (("明天", "tomorrow"), ("今天", "today")),
    "can": (("今天", "today"),),
    "habitual": (("每天", "every day"), ("周末", "on weekends")),
    "often": (),
    "like": (),
}

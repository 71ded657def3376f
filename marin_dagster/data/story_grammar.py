"""Words and sentence templates for small stories: the grammar that `stories` expands.

A template line is one sentence, each following line with `// ` another wording of it. Small
choices stand in `[a|b]`, slots in `{braces}`; a blank line ends a paragraph. `OPENINGS` and
`SCENES` begin a story, one of `PLOTS` goes on, `ENDINGS` close it.
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = _words(
    "Lily Mia Zoe Anna Ruby Ella Nora Ida Tess Clara Maya Rosa Hana Vera Suri Dora Wren Greta "
    "Lotte Amina Freya Pia Juno Elsie"
)
BOYS = _words(
    "Tom Ben Max Sam Leo Finn Otto Hugo Ravi Noah Jack Milo Emil Oscar Theo Omar Karl Felix Luca "
    "Anton Jonas Kofi Pavel Ned"
)
COLOURS = _words("red blue green yellow purple orange pink white black golden silver brown")
ADULTS = _words("mum dad grandma grandpa aunt uncle")

# animal: its sound, where it lives, what it eats
ANIMALS = {
    "dog": ("Woof", "kennel", "bones"),
    "cat": ("Meow", "basket", "fish"),
    "cow": ("Moo", "barn", "grass"),
    "duck": ("Quack", "pond", "water plants"),
    "sheep": ("Baa", "meadow", "clover"),
    "pig": ("Oink", "sty", "apples"),
    "hen": ("Cluck", "coop", "corn"),
    "frog": ("Croak", "swamp", "flies"),
    "horse": ("Neigh", "stable", "hay"),
    "owl": ("Hoot", "hollow tree", "beetles"),
    "bee": ("Buzz", "hive", "nectar"),
    "bird": ("Tweet", "nest", "worms"),
    "mouse": ("Squeak", "hole", "cheese"),
    "lion": ("Roar", "den", "meat"),
    "bear": ("Growl", "cave", "honey"),
    "donkey": ("Hee-haw", "shed", "carrots"),
    "snake": ("Hiss", "burrow", "eggs"),
    "crow": ("Caw", "treetop", "seeds"),
}

# object: what one does with it, now and in the past
OBJECTS = {
    "kite": ("fly", "flew"),
    "ball": ("kick", "kicked"),
    "boat": ("sail", "sailed"),
    "drum": ("bang", "banged"),
    "hat": ("wear", "wore"),
    "book": ("read", "read"),
    "bell": ("ring", "rang"),
    "scarf": ("wear", "wore"),
    "lamp": ("light", "lit"),
    "cart": ("pull", "pulled"),
    "doll": ("hug", "hugged"),
    "puzzle": ("solve", "solved"),
    "bucket": ("fill", "filled"),
    "bike": ("ride", "rode"),
    "balloon": ("hold", "held"),
    "whistle": ("blow", "blew"),
    "train": ("push", "pushed"),
    "blanket": ("fold", "folded"),
    "umbrella": ("open", "opened"),
    "lantern": ("carry", "carried"),
    "top": ("spin", "spun"),
    "box": ("open", "opened"),
    "flute": ("play", "played"),
    "coin": ("polish", "polished"),
}

# place: how one says to be there, and what one finds there
PLACES = {
    "park": ("in the park", "the tall slide"),
    "beach": ("at the beach", "the salty waves"),
    "forest": ("in the forest", "the old oak"),
    "farm": ("on the farm", "the wooden gate"),
    "market": ("at the market", "the fruit stand"),
    "garden": ("in the garden", "the rose bush"),
    "river": ("by the river", "the stone bridge"),
    "hill": ("on the hill", "the windy top"),
    "school": ("at the school", "the round clock"),
    "harbour": ("at the harbour", "the striped lighthouse"),
    "village": ("in the village", "the deep well"),
    "library": ("at the library", "the high shelves"),
    "lake": ("by the lake", "the long pier"),
    "station": ("at the station", "the iron bench"),
    "castle": ("at the castle", "the stone tower"),
    "meadow": ("in the meadow", "the tall flowers"),
}

# weather: how it was, and what one wears then
WEATHER = {
    "rained": ("all night", "rubber boots"),
    "snowed": ("for three days", "woolly mittens"),
    "been hot": ("since Monday", "a straw hat"),
    "been windy": ("the whole week", "a thick jacket"),
    "been foggy": ("every morning", "a bright vest"),
    "been freezing": ("since the weekend", "two pairs of socks"),
}

TIMES = (
    "One morning", "One fine day", "Early one day", "Late one afternoon", "On a Sunday",
    "Early on Saturday", "One day in spring", "One quiet evening", "On the first day of autumn",
    "After breakfast one day", "On a Tuesday", "On the last day of summer", "One day at noon",
)  # fmt: skip
ADJECTIVES = _words(
    "tiny huge round square shiny dusty rusty wooden broken crooked striped spotted sleepy noisy "
    "fluffy sticky muddy heavy hollow fancy plain strange lonely proud clumsy grumpy polite cosy "
    "crumpled smooth bumpy pointed sparkling faded painted frozen steaming wobbly secret famous"
)
THINGS = _words(
    "snail squirrel hedgehog rabbit butterfly ladder wheel basket barrel lemon pumpkin pear cherry "
    "mushroom pebble feather button spoon kettle pillow clock mirror piano trumpet statue fountain "
    "windmill tractor sledge anchor compass postman baker farmer sailor painter fisherman teacher "
    "gardener tailor ribbon candle jug teapot carpet curtain rope hammer saw needle letter map "
    "stamp newspaper chimney puddle rainbow shadow footprint scarecrow beetle spider goose turtle"
)
TASTES = _words("warm spicy sweet salty fresh cold burnt tasty soft crunchy")
DISHES = _words(
    "pancakes soup porridge dumplings noodles potatoes beans rice stew pie waffles omelette toast "
    "carrots peas lentils pizza salad pudding cabbage pumpkins muffins sausages corn pasta bread"
)
TRAITS = _words("kind brave shy curious clever cheerful quiet careful busy gentle stubborn lively")

OPENINGS = """
[Once upon a time|Long ago|Once], there was a [little|small|young] {sex} [named|called] {hero}.
// {hero} was a {trait} {sex} who lived near the {place}.
// In a [small|tidy|little] house near the {place} lived a {sex} called {hero}.
// There was once a {trait} {sex}, and {his} name was {hero}.
{hero}'s favourite colour was {colour}.
// {hero} loved the colour {colour} more than any other.
// Of all colours, {hero} liked {colour} best.
So {his} {adult} gave {him} a {colour} {object}.
// That is why {hero} had a {colour} {object}.
// {His} {adult} knew it and [bought|made] {him} a {colour} {object}.
// On {his} birthday {he} got a {colour} {object} from {his} {adult}.
{hero} [liked|loved] to {use} the {colour} {object} [every day|all day long|with {his} {adult}].
// [Before supper|After school], {hero} {used} the {colour} {object}.
// Nothing was more fun than to {use} the {object}.
// {He} {used} the {object} [again and again|every single day|until it was dark].
{hero} also had a friend, a [small|young|funny|fat|soft] {animal} that said, "{sound}!"
// {His} best friend was {a_animal} that lived in a {home} [nearby|close by|behind the house].
// Next door, in a {home}, lived {a_animal} that ate {food} and said, "{sound}!"
// {hero} had {a_animal} too, and the {animal} loved to eat {food}.
"""

SCENES = """
It had {weather} {how_long}, so {hero} wore {garment}.
// Because it had {weather} {how_long}, {hero} put on {garment}.
// "It has {weather} {how_long}," said {his} {adult}, so {hero} took {garment}.
Outside, {he} [met|saw|passed] {a_adjective1} {thing1} and {a_adjective2} {thing2}.
// There was {a_adjective1} {thing1} [next to|behind|under|near] {a_adjective2} {thing2}.
// {hero} [counted|noticed] {number} {adjective1} {things1} and one {adjective2} {thing2}.
// "Look, {a_adjective1} {thing1}!" said {hero}, but it was only {a_adjective2} {thing2}.
// {friend} had told {him} about {a_adjective1} {thing1} with {a_adjective2} {thing2}.
{He} thought of the {dish} that {he} had eaten.
// The whole street smelled of {dish}.
// There would be {dish} for [supper|lunch].
// {He} had {number} pieces of {taste} {dish} in {his} bag.
// A neighbour was cooking {taste} {dish}.
"""

PLOTS = {
    "lost": """
{time}, {hero} took the {colour} {object} [with {him}|along] and went to the {place}.
// {time}, {hero} and the {animal} walked to the {place} with the {colour} {object}.
{hero} put it down near {feature} and [ran off to play|began to run about|watched the clouds].
// The two played [tag|hide and seek|catch] around {feature} for a long time.
When {hero} came back, the {object} was gone!
// But when it was time to go home, {he} could not find the {object}.
// Then {hero} looked around, and the {colour} {object} was not there.

"Oh no!" [cried|said] {hero}. "Where is my {object}?"
// {hero} felt [very sad|like crying|a cold lump in {his} tummy].
{He} looked [under a bench|behind a wall|in the long grass], but [it was not there|found nothing].
// {He} looked [between the stones|under the leaves], but there was nothing.
// {He} asked {friend}, but {friend} had not seen it.
"{sound}! {sound}!" said the {animal}, and it [ran|hurried] to {feature}.
// Then the {animal} called, "{sound}! {sound}!" from behind {feature}.
{hero} [followed|went after] the {animal} and [peeped|looked] behind {feature}.

There, in the [shade|dust|grass], was the {colour} {object}!
// And what did {he} see? It was the {colour} {object}!
// The {colour} {object} was lying there, safe and [sound|dry|clean].
{hero} hugged the {animal}. "Thank you! You found my {object}," {he} said.
// "You are the best {animal} in the world!" [said|shouted] {hero}.
{moral}
""",
    "share": """
{time}, {hero} was {in_place} to {use} the {colour} {object}.
// {time}, {hero} sat near {feature} with the {colour} {object}.
A [boy|child] called {friend} came and [watched|stood by quietly].
// Soon {friend} came along and had [nothing to play with|no toy at all].
"May I {use} it too?" asked {friend}.
// "That is a lovely {object}," said {friend}. "Can I try it?"

{hero} held the {object} tight. "No, it is mine!" {he} said.
// {hero} did not want to share. {He} turned away.
{friend} [walked away slowly|looked at the ground|sat down all alone] and was sad.
// A tear ran down {friend}'s [cheek|nose].
The {animal} looked at {hero} and said, "{sound}," very softly.
// "{sound}!" said the {animal}, as if it wanted to say: that was not nice.
{hero} thought about it. To play alone was not much fun.
// Then {hero} felt bad, because {he} knew how it feels to be left out.

{He} ran to {friend}. "I am sorry. Let us {use} the {colour} {object} together!"
// "Wait, {friend}!" called {hero}. "You can have a turn with the {colour} {object}."
So they {used} the {object} together [until the sun went down|all afternoon|until supper].
// They {used} the {object} for hours, and the {animal} [danced around them|watched them].
// {friend} smiled, and they took turns all afternoon near {feature}.
{moral}
""",
    "rescue": """
{time}, {hero} heard a sad sound {in_place}.
// {time}, {hero} was {in_place} when {he} heard a noise.
"{sound}! {sound}!" It was the {animal}!
// It came from {feature}: "{sound}! {sound}!"
The {animal} was stuck [in a hole|under a branch|behind a fence|in thick mud] and could not get out.
// The poor {animal} had its foot caught in [a root|an old net|a rope].

{hero} pulled and pulled, but {he} was not strong enough.
// First {hero} tried with {his} hands, but it did not work.
"Do not be afraid," {he} [said|whispered]. "I will help you."
// The {animal} was [shaking|scared], so {hero} [stroked|talked to] it.
Then {he} had an idea. {He} [ran|hurried] to get the {colour} {object} and {his} {adult}.
// "I know!" said {hero}. {He} used the {colour} {object} to call {friend} for help.
[Together they|The two of them] pulled, one, two, three, and the {animal} was free!
// With a big tug and a [plop|bump], the {animal} came out!

"{sound}!" said the {animal} happily and went back to its {home}.
// The {animal} ran to its {home} and ate a lot of {food}.
The next day it [came to thank {hero}|was at the door], and they {used} the {colour} {object}.
// From then on the {animal} came each day to see {hero} {use} the {colour} {object}.
{moral}
""",
    "afraid": """
{hero} was afraid of [the dark|high places|deep water|loud thunder|strangers].
// There was one thing that scared {hero}: [the dark|storms|big crowds|climbing].
{time}, {his} {adult} asked {him} to go to the {place} alone.
// {time}, {hero} had to fetch the {colour} {object}, which was still {in_place}.
"I cannot do it," [said|whispered] {hero}. {His} knees [shook|felt weak].

"Take the {animal} with you," said {his} {adult}.
// But then the {animal} came and said, "{sound}!" It wanted to go along.
So they went, step by step, past {feature}.
// Hand in paw they went, and {hero} sang a [song|little song|silly song].
[Something moved|There was a rustle|A shadow jumped]! {hero} [stopped|froze].
// Suddenly there was a loud [crack|bang|hoot], and {hero} [jumped|shut {his} eyes].
It was only [a leaf in the wind|a little moth|{friend} with a torch|an old door]. {hero} laughed.
// "Hello!" said {friend}. "Did I scare you? I only wanted to see your {object}."

Then {hero} walked on, picked up the {colour} {object} and brought it home.
// At last {he} held the {colour} {object} in {his} hands. {He} had done it!
"I am proud of you," said {his} {adult}, and the {animal} got some {food}.
// "You were very brave," said {his} {adult}, and gave the {animal} some {food}.
{moral}
""",
    "broken": """
{time}, {hero} wanted to {use} the {colour} {object} inside the house.
// {time}, {hero} ran too fast with the {colour} {object}.
"Be careful!" said {his} {adult}, but {hero} did not listen.
// {His} {adult} had told {him} not to, but {hero} forgot.
Crash! {He} [bumped into|hit|knocked over] [a vase|a big jar|the best teapot|a plate], and it broke.
// Bang! There was [a vase|a pot|a bowl] on the floor in [many|a hundred] pieces.

{hero} was scared. {He} wanted to say that the {animal} had done it.
// "I could say it was the {animal}," thought {hero}.
"{sound}?" said the {animal} and looked at {him} with big eyes.
// But the {animal} sat there, said "{sound}," and trusted {him}.
{hero} knew that a lie would make it worse.
// It would not be right to blame a friend.

So {he} went to {his} {adult} and said, "It was me. I am sorry."
// "I broke it," said {hero} in a small voice. "I am so sorry."
{His} {adult} was not angry. "Thank you for telling the truth," {adult_he} said.
// "[Things break|That can happen]," said {his} {adult}. "I am glad that you told me."
Together they swept the floor, and later {hero} {used} the {colour} {object} outside, {in_place}.
// They glued it with care, and then {hero} took the {colour} {object} outside to the {place}.
{moral}
""",
    "race": """
{time}, there was a big race {in_place}.
// {time}, all the children met {in_place} for a race.
The winner would get [a cake|a gold star|a basket of plums|a jar of sweets].
// "Run from here to {feature} and back," said {hero}'s {adult}.
{hero} carried the {colour} {object} for luck, and the {animal} came to watch.
// {hero} tied the {colour} {object} to {his} back for luck.

"Ready, steady, go!" They all ran. {friend} was the fastest.
// {hero} ran like the wind, and soon only {friend} was in front.
"{sound}! {sound}!" called the {animal} from the side.
// The {animal} [hopped|ran] along the road and called, "{sound}!"
Then {friend} fell and hurt [a knee|an arm|a foot].
// But near {feature}, {friend} [tripped|slipped] and sat down with a cry.
{hero} could have won now. But {he} stopped and helped {friend} up.
// {hero} looked at the finish, and then at {friend}. {He} turned back.

They walked over the line together, and everyone [clapped|cheered].
// So both of them came last, and yet they were happy.
They shared the prize, and {friend} was allowed to {use} the {colour} {object}.
// "You are a true friend," said {friend}. "And your {colour} {object} did bring luck."
{moral}
""",
    "plant": """
{time}, {hero} found a [tiny|strange|round] seed {in_place}.
// {time}, {his} {adult} gave {hero} a seed from the {place}.
"What will it be?" asked {hero}. "Wait and see," said {his} {adult}.
{hero} dug a hole near {feature}, put in the seed and gave it water.
// {He} planted it, and put the {colour} {object} beside it to mark the place.

The next day, nothing had [grown|changed]. {hero} was [cross|sad|not happy].
// {hero} looked each morning, but saw only brown earth.
The {animal} wanted to dig it up. "{sound}!" it said. "No," said {hero}, "we must wait."
// "{sound}," said the {animal}, and it sat down beside the {object} to wait too.
It rained, and the sun shone, and [a week|ten days|many days] went by.
// {friend} came and helped to keep the [weeds|snails] away.

Then, one morning, a green leaf came out beside the {colour} {object}!
// And at last, next to the {colour} {object}, stood a [tall|fine] plant with a {colour} flower.
The {animal} ate {food} to celebrate, and {hero} [danced|sang].
// "It has grown!" shouted {hero}, and the {animal} said, "{sound}!"
{moral}
""",
    "gift": """
{time}, it was {friend}'s birthday, and {hero} had no gift.
// {time}, {hero} heard that {friend} was ill and very sad.
"What can I give?" {he} asked the {animal}. "{sound}," said the {animal}.
// {hero} [counted|looked at] {his} coins, but they were too few to buy a gift at the market.
{He} went to the {place} to think, and sat down near {feature}.
// {He} [picked|looked for] flowers {in_place}, but there were none.

Then {he} looked at the {colour} {object}. It was the best thing {he} had.
// At home {he} saw the {colour} {object}, and had an idea.
It was hard to give it away.
// {hero} held it for a long time and thought hard.
But {he} [wrapped it in paper|put it in a bag|tied a ribbon around it] and took it to {friend}.
// Then {he} nodded, and off they went to {friend}'s house.

{friend} opened it. "A {colour} {object}! Is it really for me?"
// When {friend} saw the {colour} {object}, {friend} [smiled|beamed] from ear to ear.
"Yes," said {hero}, "but may I come and {use} it with you?"
// "Let us {use} it together each week," said {friend}.
And the {animal} got some {food}, for it had been good all day.
// The {animal} said, "{sound}!" and everybody laughed.
{moral}
""",
    "storm": """
{time}, dark clouds came over the {place}.
// {time}, {hero} and {friend} were {in_place} when it began to rain.
The wind [blew|howled], and it blew the {colour} {object} out of {hero}'s hands!
// A strong wind took the {colour} {object} and carried it up over {feature}.
"Come back!" shouted {hero}, and {he} ran after it.
// {hero} [jumped|reached] as high as {he} could, but it was too late.

"{sound}!" called the {animal} from its {home}.
// The {animal} looked out of its {home} and called, "{sound}! {sound}!"
"Come in, or you will get wet," said {friend}.
// "It is not safe to stay outside," said {friend}.
So they [crept|sat] inside with the {animal} and ate {food} until it was over.
// They waited together, told stories and counted the thunder.

When the sun came out, there was a rainbow above {feature}.
// Then it was quiet. Drops fell from {feature}.
And under the rainbow, caught in a [bush|tree], was the {colour} {object}.
// In a puddle lay the {colour} {object}, wet, but not broken.
{hero} dried it, and soon {he} could {use} it again.
// "Tomorrow we can {use} the {object} again," said {hero}.
{moral}
""",
    "promise": """
{time}, {hero} promised to bring the {animal} some {food}.
// "I will bring you {food} today," {hero} promised the {animal}. "{sound}," said the {animal}.
But on the way {he} met {friend} {in_place}.
// But {hero} went to the {place} first to {use} the {colour} {object}.
They {used} the {colour} {object} near {feature}, and {hero} forgot the time.
// "Stay and play," said {friend}, and so {he} did, for hours.

In the evening {hero} heard a sad "{sound}" from the {home}.
// When it grew dark, {he} thought of the {animal} in its {home}.
"Oh dear! I forgot my promise!" {he} [said|cried].
// {hero} felt [ashamed|very sorry].
{He} [ran|hurried] to get the {food}, although {he} was tired.
// {His} {adult} lit the way, and together they carried the {food}.

"{sound}!" said the {animal}, and it ate the {food} at once.
// The {animal} was so hungry that it ate all of the {food}.
"I will not forget again," said {hero}, and put the {colour} {object} beside the {home} to remember.
// {hero} tied a string to the {colour} {object} so that {he} would remember next time.
{moral}
""",
}

MORALS = {
    "lost": """
[So {hero} learned|That day {hero} learned] to take care of {his} things.
// A good friend helps you look.
// After that, {hero} always knew where the {object} was.
""",
    "share": """
[And {hero} learned|That day {hero} saw] that sharing makes play more fun.
// Things are nicer when you share them.
// Joy grows when you share it.
""",
    "rescue": """
Even a small {sex} can be a big help.
// If you help others, you find new friends.
// {hero} was glad that {he} had not walked past.
""",
    "afraid": """
To be brave is to be afraid and go on all the same.
// With a friend, nothing is so dark.
// From that day, {hero} was not so afraid any more.
""",
    "broken": """
It is always better to tell the truth.
// {hero} felt light again, for the truth was out.
// Telling the truth takes courage, but it helps.
""",
    "race": """
It is better to be kind than to be first.
// A friend is worth more than a prize.
// Nobody remembered who won, but all remembered that {hero} was kind.
""",
    "plant": """
Good things take time.
// If you wait and care, things will grow.
// So {hero} learned to be patient.
""",
    "gift": """
The best gifts come from the heart.
// To give can be better than to have.
// And {hero} was happier than ever before.
""",
    "storm": """
After rain comes sunshine.
// It is wise to wait until a storm is over.
// What is lost may come back.
""",
    "promise": """
If you make a promise, you must keep it.
// A promise is a promise.
// So {hero} learned to think of those who wait.
""",
}

ENDINGS = """
[The end.|That night {hero} slept well.|And they all went home for supper.]
// [They were friends for ever after.|{hero} fell asleep with a smile.]
// And the {animal} said, "{sound}!" one more time.
"""

"""Which taps of a 3 x 3 x 3 kernel tell rows apart best, one after the other: tools/tap_tree.py grew it.

A letter is a tap, (kx * 3 + ky) * 3 + kz. Node i asks for tap TREE[i]; of rows without it node 2 i + 1 asks
on, of rows with it node 2 i + 2, down to DEPTH levels. No way asks for a tap twice.
"""

DEPTH = 10
LETTERS = "abcdefghijklmnopqrstuvwxyz0"
TREE = (
    "sacjuf0yytyiyzgpbzixcvilbzarxdygtki0cfuwil0cihtohylpgduyxughhzavtu0tdruvcfghutb0lhyfiygfzrzffjjrbgbl"
    "auyq0plgblbqxuydahrpaipvpbudbkibircld0i0tldwifgigdveugrllddzvcigvvloyryzihvizpjhc0crrrjkvvvubareearp"
    "aelxyzag0abuubb0bluxxliixuiwypagrdriaiameppppyuppvvjdtimcc0uvrvcvrdidfmu0mcxgrcftudtvmtxirubgpvbupup"
    "iiigcxctl0hxxc0gcg0vljloghvrvylzlkkiypxfyvjprrxivylpzpp0wmiq0fgppjpqggg0vr0lvwcmczcxheuey0gdrbrdy0yu"
    "azzdlueoypo0pduh0agbxalldlaauavxbj0k0l0ot0gkgrlhxupoiqatawagvbgaaotgriyrddyfadyaiiimbyuqryuzutaqwqaf"
    "ufaddjullrbiilzu0idlvmr0vmclvwi0vbkxbccibvvcdrdgcl0rget0tltouhflvg0k0m0v0krtchchcxcippvdhwuerlvdulbh"
    "uhvru00dcrr0crrxdx0qgg00c0bb0xgecl0m0xcylkvkiggfgh0gvy0qvfrwjkgwjczjjjwrypig00k00vgz0r0qxivfgzjepylw"
    "ikizhppwwmiqmttpifpgfofbphfqwgcgbgtecevq0ttoccc0trtcvglxhlhdglrwcl00be0auxydypegguybr0dar0beyvexovek"
    "zku0dvvgludxehdggpovaravvg0g000l0rlbglbxxublluvddmlxab0kuop0up0ubeh00xjuuzkx0rl0tkbzghbjihz0gkzpxwpw"
    "agaaaqahhdqaadtvpdwqvwaduhuplrolwlajjijoovdqdapjjpihhjubbpueyeufafayuejmuxyryquzutaqllillbymmuxrrbqd"
    "jlqiabumtekmxtjxxxxhhlz"
)

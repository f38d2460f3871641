"""The frame of a page: styles and the little script that shows a card beside the box it belongs to."""

from __future__ import annotations

from ..drawing import fonts
from ..drawing.svg import escape

_STYLE = """
html{background:#fff;color:#1B2230}
body{margin:0;font-family:FAMILY;font-size:12.5px;font-variant-numeric:tabular-nums}
main{position:relative;display:flex;flex-wrap:wrap;align-items:flex-start}
.head,p{flex:1 0 100%}
.chart{flex:1 1 900px}
.side{flex:0 1 424px;min-width:0}
.head,.chart{overflow-x:auto;min-width:0}
svg{display:block;width:100%;height:auto}
.head svg{min-width:1060px;max-width:max-content}
.chart svg{min-width:var(--least,640px)}
p{box-sizing:border-box;margin:0;padding:12px 32px;color:#5A6475;font-size:12px}
.label{display:none;color:#B34700;font-weight:650}
@media(max-width:1059px){.label:not(:empty){display:block}}
.side>h3{margin:0 12px 8px;font-size:13px;font-weight:650}
details{margin:4px 12px}
summary{cursor:pointer}
details dl{display:grid;grid-template-columns:1fr auto;gap:1px 8px;margin:2px 12px;color:#5A6475}
details dd{margin:0;overflow-wrap:anywhere}
svg text{white-space:pre}
text[font-weight=bold]{font-weight:650}
[data-card]{cursor:default;outline:none}
[data-card].on>line{stroke-width:3}
#card{position:absolute;display:none;box-sizing:border-box;background:#fff;
border:1.2px solid #DDE1E8;border-radius:8px;
box-shadow:0 6px 24px rgba(27,34,48,.16);padding:16px 18px;pointer-events:none;z-index:2;line-height:1.5}
#card h2{margin:0 0 8px;font-size:15px;font-weight:650;overflow-wrap:anywhere;
display:flex;justify-content:space-between;gap:12px}
#card h2 span{font-size:13px;white-space:nowrap}
#card dl{margin:0;display:grid;grid-template-columns:84px 1fr;gap:1px 8px}
#card dt{color:#5A6475}
#card dd{margin:0;overflow-wrap:anywhere}
#card dd.code{font-family:MONO;font-size:11.5px}
#card h3{margin:12px 0 4px;padding-top:10px;border-top:1px solid #E6EAEF;font-size:13px;font-weight:650}
#card h3 em{font-weight:400;font-style:normal;padding-left:8px}
#card .bar{display:grid;grid-template-columns:84px 1fr 64px 62px;gap:0 8px;align-items:center;height:24px}
#card .bar b{font-weight:650;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
#card .bar i{position:relative;height:14px}
#card .bar i u{position:absolute;top:0;height:14px;border-radius:2px}
#card .bar s{text-decoration:none;text-align:right;white-space:nowrap}
#card .note{grid-column:2/5;color:#5A6475}
@media print{#card{display:none!important}}
"""

_SCRIPT = """
(function(){
var holder=document.getElementById("data"),card=document.getElementById("card");
if(!holder||!card)return;
var data=JSON.parse(holder.textContent),now=null;
var ring=document.createElementNS("http://www.w3.org/2000/svg","rect"),
svg=document.querySelector(".chart svg"),side=document.querySelector(".side");
ring.setAttribute("fill","none");ring.setAttribute("stroke-width","3");ring.setAttribute("stroke-opacity",".45");ring.setAttribute("rx","5");
ring.style.pointerEvents="none";svg.appendChild(ring);
function add(parent,tag,text,name){
var e=document.createElement(tag);if(text)e.textContent=text;if(name)e.className=name;
parent.appendChild(e);return e}
function fill(f){
card.textContent="";
var h=add(card,"h2",f.title);var d=add(h,"span",f.device);d.style.color=f.text;
var dl=add(card,"dl");
f.rows.forEach(function(r){
add(dl,"dt",r[0]);add(dl,"dd",r[1],/^(module|source|code|tasks|tensor|reads|makes)$/.test(r[0])?"code":"")});
if(f.parts){add(card,"h3","Longest inside");var p=add(card,"dl");p.style.gridTemplateColumns="1fr auto";
f.parts.forEach(function(r){add(p,"dd",r[0],"code");add(p,"dd",r[1])})}
if(f.why){var t=add(card,"h3","Why here?");add(t,"em",f.why.text);
f.why.bars.forEach(function(b){var row=add(card,"div","","bar");add(row,"b",b.device);
if(b.note){add(row,"span",b.note,"note");return}
var i=add(row,"i"),a=b.at,u=add(i,"u");
u.style.cssText="left:0;top:5px;height:4px;background:#5A6475;width:"+a[0]+"%";
u=add(i,"u");
u.style.cssText="top:6px;height:0;border-radius:0;border-top:2px dotted #B34700;left:"+a[0]+"%;"+
"width:"+(a[1]-a[0])+"%";
u=add(i,"u");
u.style.cssText="background:"+b.hue+";left:"+a[1]+"%;width:max(1px,"+(a[2]-a[1])+"%);"+
"opacity:"+(b.more=="chosen"?1:.45);
add(row,"s",b.end);add(row,"s",b.more)})}
}
function show(g){
if(now)now.classList.remove("on");now=g;ring.style.display="none";
if(!g){card.style.display="none";return}
var f=data.cards[g.getAttribute("data-card")];if(!f)return;
g.classList.add("on");fill(f);
var r=f.ring;if(r){ring.style.display="";ring.setAttribute("stroke",f.hue);
["x","y","width","height"].forEach(function(n,i){ring.setAttribute(n,r[i]+(i<2?-1.5:3))})}
card.style.display="block";
var view=document.documentElement.clientWidth,b=g.getBoundingClientRect(),wide=Math.min(data.width,view-16),
beside=side.getBoundingClientRect().left,far=b.left+b.width/2>view/2?8:view-wide-8;
card.style.width=wide+"px";card.style.left=window.scrollX+(beside>b.right?Math.min(beside,view-wide-8):far)+"px";
var top=window.scrollY+b.top+b.height/2-card.offsetHeight/2,low=window.scrollY+12,
high=window.scrollY+window.innerHeight-card.offsetHeight-12;
card.style.top=Math.max(8,Math.min(Math.max(top,low),Math.max(low,high)))+"px";
}
function find(e){return e.target.closest?e.target.closest("[data-card]"):null}
document.addEventListener("pointerover",function(e){show(find(e))});
document.addEventListener("focusin",function(e){show(find(e))});
document.addEventListener("focusout",function(){show(null)});
document.addEventListener("click",function(e){var g=find(e),f=g&&data.cards[g.getAttribute("data-card")];show(g);
if(f&&f.fold){var d=document.getElementById(f.fold);d.open=!d.open}});
document.addEventListener("keydown",function(e){if(e.key=="Escape")show(null)});
document.querySelectorAll("[data-card]").forEach(function(g){g.setAttribute("tabindex","0");
var t=g.querySelector("title");if(t)t.remove();
var f=data.cards[g.getAttribute("data-card")];if(f)g.setAttribute("aria-label",f.title+", "+f.device)});
})();
"""


def page(title: str, body: str, data: str) -> str:
    """A whole HTML file; `data` is the JSON of its cards, empty when it has none."""
    style = _STYLE.replace("FAMILY", fonts.FAMILY).replace("MONO", fonts.MONO)
    cards = ""
    if data:
        inert = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        cards = (
            f'<div id="card" role="status"></div><script type="application/json" id="data">{inert}</script>'
        )
        cards += f"<script>{_SCRIPT}</script>"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f"<body><main>{body}{cards}</main></body></html>\n"
    )

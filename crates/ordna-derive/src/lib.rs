//! The derive macro of typed keys.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Field, Fields, Index, Member, parse_macro_input};

/// Makes a struct a key of typed maps. It is encoded as a tuple of its fields, in the order of
/// their declaration.
///
/// `#[ordna(descending)]` on a field reverses its order. Tuples of the first fields, without at
/// least the last one, can be used as prefixes of the key.
#[proc_macro_derive(TupleKey, attributes(ordna))]
pub fn tuple_key(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a type that implements serde's traits a type of values of typed maps. Values are stored in
/// the format of the crate `postcard`.
#[proc_macro_derive(Stored)]
pub fn stored(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let name = &input.ident;
    let mut generics = input.generics.clone();
    let bounds = generics.type_params().map(|parameter| {
        let name = &parameter.ident;
        syn::parse_quote!(#name: ::ordna::typed::SerdeOwned)
    });
    let bounds: Vec<syn::WherePredicate> = bounds.collect();
    generics.make_where_clause().predicates.extend(bounds);
    let (generic, types, bounds) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #generic ::ordna::typed::Stored for #name #types #bounds {
            type Ref = Self;

            fn load(bytes: &[u8]) -> ::core::result::Result<Self, ::ordna::ValueError> {
                <::ordna::typed::Serde<Self> as ::ordna::typed::Stored>::load(bytes)
                    .map(|value| value.0)
            }
        }
        #[automatically_derived]
        impl #generic ::ordna::typed::StoreAs<Self> for #name #types #bounds {
            fn with_bytes<OrdnaResult>(
                &self,
                store: impl ::core::ops::FnOnce(&[u8]) -> OrdnaResult,
            ) -> ::core::result::Result<OrdnaResult, ::ordna::ValueError> {
                ::ordna::typed::StoreAs::<::ordna::typed::Serde<&Self>>::with_bytes(
                    &::ordna::typed::Serde(self),
                    store,
                )
            }
        }
    }
    .into()
}

fn is_descending(field: &Field) -> syn::Result<bool> {
    let mut descending = false;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("ordna")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("descending") {
                return Err(meta.error("expected `descending`"));
            }
            descending = true;
            Ok(())
        })?;
    }
    Ok(descending)
}

fn expand(input: &DeriveInput) -> syn::Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "only structs are tuple keys"));
    };
    let name = &input.ident;
    let (mut members, mut encodes, mut decodes) = (vec![], vec![], vec![]);
    for (at, field) in data.fields.iter().enumerate() {
        let member = match (&field.ident, &data.fields) {
            (Some(ident), _) => Member::Named(ident.clone()),
            (None, _) => Member::Unnamed(Index::from(at)),
        };
        let ty = &field.ty;
        if is_descending(field)? {
            encodes.push(quote! {
                ::ordna::tuple::Encode::encode(&::core::cmp::Reverse(&self.#member), out);
            });
            decodes.push(quote! {
                #member: <::core::cmp::Reverse<#ty> as ::ordna::tuple::Decode>::decode(reader)?.0
            });
        } else {
            encodes.push(quote!(::ordna::tuple::Encode::encode(&self.#member, out);));
            decodes.push(quote!(#member: <#ty as ::ordna::tuple::Decode>::decode(reader)?));
        }
        members.push(member);
    }
    let mut generics = input.generics.clone();
    if !generics.params.is_empty() {
        let types = data.fields.iter().map(|field| &field.ty);
        let bounds = types.map(|ty| syn::parse_quote!(#ty: ::ordna::tuple::Decode));
        generics
            .make_where_clause()
            .predicates
            .extend(bounds.collect::<Vec<syn::WherePredicate>>());
    }
    let (generic, types, bounds) = generics.split_for_impl();
    let prefixes = prefixes(input, &data.fields)?;
    Ok(quote! {
        #[automatically_derived]
        impl #generic ::ordna::tuple::Encode for #name #types #bounds {
            fn encode(&self, out: &mut ::std::vec::Vec<u8>) {
                out.push(::ordna::tuple::code::TUPLE);
                #(#encodes)*
                out.push(::ordna::tuple::code::END);
            }
        }
        #[automatically_derived]
        impl #generic ::ordna::tuple::Decode for #name #types #bounds {
            fn decode(
                reader: &mut ::ordna::tuple::Reader<'_>,
            ) -> ::core::result::Result<Self, ::ordna::tuple::DecodeError> {
                reader.expect(::ordna::tuple::code::TUPLE, "a tuple")?;
                let value = Self { #(#decodes),* };
                reader.expect(::ordna::tuple::code::END, "the end of a tuple")?;
                ::core::result::Result::Ok(value)
            }
        }
        #[automatically_derived]
        impl #generic ::ordna::tuple::Like<Self> for #name #types #bounds {}
        #prefixes
    })
}

/// Implements the prefixes: tuples of the first fields. Structs with generic parameters have none.
fn prefixes(input: &DeriveInput, fields: &Fields) -> syn::Result<TokenStream> {
    if !input.generics.params.is_empty() {
        return Ok(TokenStream::new());
    }
    let name = &input.ident;
    let mut all = TokenStream::new();
    for length in 1..fields.len() {
        let (mut parameters, mut bounds, mut encodes) = (vec![], vec![], vec![]);
        for (at, field) in fields.iter().take(length).enumerate() {
            let (parameter, at, ty) =
                (format_ident!("OrdnaPrefix{at}"), Index::from(at), &field.ty);
            bounds.push(quote!(#parameter: ::ordna::tuple::Like<#ty>));
            encodes.push(if is_descending(field)? {
                quote! {
                    ::ordna::tuple::Encode::encode(&::core::cmp::Reverse(&self.#at), out);
                }
            } else {
                quote!(::ordna::tuple::Encode::encode(&self.#at, out);)
            });
            parameters.push(parameter);
        }
        all.extend(quote! {
            #[automatically_derived]
            impl<#(#bounds),*> ::ordna::tuple::Prefix<#name> for (#(#parameters,)*) {
                fn encode_prefix(&self, out: &mut ::std::vec::Vec<u8>) {
                    out.push(::ordna::tuple::code::TUPLE);
                    #(#encodes)*
                }
            }
        });
    }
    Ok(all)
}
